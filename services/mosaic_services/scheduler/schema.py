"""Checks a run's config against its worker's description, in words that a person can act on."""

from __future__ import annotations

import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from jsonschema import Draft202012Validator, FormatChecker
from jsonschema.exceptions import SchemaError
from referencing import Registry

from mosaic_bus.refusals import Problem, brief
from mosaic_bus.wording import near_names
from mosaic_services.checkpoint_references import FORM, is_reference, parse
from mosaic_services.config_fields import dotted, put, texts
from mosaic_services.scheduler.wording import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from jsonschema.exceptions import ValidationError

    from mosaic_services.config_fields import Field

__all__ = ["ConfigSchema", "possible_references"]

# CPU seconds for one check. A list of a megabyte, the largest config, takes three.
_LONGEST_CHECK_S = 5.0
_LONGEST_VALUE = 80
_LONGEST_REASON = 300
_FIELDS_NAMED = 30
_VALUES_NAMED = 8
# Levels of a schema that are searched for fields to suggest; a schema may refer to itself.
_DEEPEST = 10
_ABSOLUTE_PATH = "absolute-path"
# The supervisor adds the run's id; users do not write it.
_GIVEN_BY_US = "run_id"


class ConfigSchema:
    """The config that a worker takes.

    Workers are not ours: a schema can be wrong in any way, and some ways show only when a value is checked. Such a
    schema is `broken`, with the reason, and must not keep the worker's runs from being tried: the worker checks its
    configuration itself. One that takes too long to check is broken, too. To be used in the main thread only.
    """

    def __init__(
        self,
        schema: dict[str, Any],
        algorithms: Sequence[dict[str, Any]] = (),
        environments: Sequence[str] = (),
    ) -> None:
        self.broken = ""
        self._schema = schema
        # Algorithms that do not run in this environment, and what they need; names of environments, if they are known.
        self._needs = {each.get("name"): each.get("needs") for each in algorithms if each.get("runs") is False}
        self._environments = frozenset(environments)
        self._validator: Draft202012Validator | None = None
        # Fields that take a path and hold a reference.
        self._seen: set[Field] = set()
        try:
            with _time_limit():
                self._validator = _validator(schema, self._is_path)
                self._find({})
        except Exception as error:
            self._give_up(error)

    def problems(self, config: dict[str, Any]) -> list[Problem]:
        """List each wrong field with the value given and what is allowed."""
        try:
            with _time_limit():
                return [*self._find(config), *self._not_there(config)]
        except Exception as error:
            self._give_up(error)
            return []

    def arrange(self, config: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
        """Move fields from the top level to where the schema has a field of that name, if there is one such place.

        Return the config and a sentence about each field.
        """
        # A schema that allows further fields may mean them.
        is_closed = self._validator is not None and self._schema.get("additionalProperties") is False
        unknown = [name for name in config if name not in self._schema.get("properties", {})] if is_closed else []
        if not unknown:
            return config, []
        arranged, said = dict(config), []
        places = _fields(self._schema, self._schema)
        for name in unknown:
            found = [place for place in places if place[-1] == name]
            if len(found) == 1 and len(found[0]) > 1 and _is_free(arranged, found[0]):
                put(arranged, list(found[0]), arranged.pop(name))
                said.append(f"{dotted((name,))} belongs in {dotted(found[0])}: it was moved there")
        return arranged, said

    def references(self, config: dict[str, Any]) -> tuple[tuple[Field, str], ...]:
        """Find the fields that take a path and hold a reference to a checkpoint of a run."""
        possible = possible_references(config)
        if not possible or self._validator is None:
            return possible
        self._seen.clear()
        self.problems(_placed(config))
        return tuple((field, text) for field, text in possible if field in self._seen)

    def _is_path(self, value: object) -> bool:
        if isinstance(value, str) and is_reference(value):
            if isinstance(value, _PlacedText):
                self._seen.add(value.field)
            return parse(value) is not None
        return not isinstance(value, str) or value.startswith("/")

    def _find(self, config: dict[str, Any]) -> list[Problem]:
        if self._validator is None:
            return []
        found: dict[str, Problem] = {}
        mistyped: set[tuple[str | int, ...]] = set()
        for error in sorted(self._validator.iter_errors(config), key=lambda each: list(map(str, each.absolute_path))):
            if error.validator == "type":
                # A schema may describe a field twice, in general and conditionally: report it once.
                if (path := tuple(error.absolute_path)) in mistyped:
                    continue
                mistyped.add(path)
            found.update({str(each): each for each in _explain(error, self._schema)})
        return list(found.values())

    def _not_there(self, config: dict[str, Any]) -> list[Problem]:
        """Report an algorithm that does not run here, and environments that the worker does not have."""
        found = []
        algorithm = config.get("algo")
        if isinstance(algorithm, str) and algorithm in self._needs:
            needs = self._needs[algorithm] or f"{algorithm} does not run in this profile"
            found.append(Problem(field="config.algo", message=needs, value=algorithm))
        for field, name in texts(config) if self._environments else ():
            if field[-1] == "env_id" and name and ":" not in name and not self._has_environment(name):
                near = near_names(name, self._environments)
                hint = f"; did you mean {' or '.join(near)}?" if near else ""
                said = f"{_value(name)} is none of the {len(self._environments)} environments that the worker has{hint}"
                found.append(Problem(field=dotted(field), message=said, value=brief(name), near=near))
        return found

    def _has_environment(self, name: str) -> bool:
        """Whether an environment is registered; a name without a version means the newest."""
        return name in self._environments or any(each.startswith(f"{name}-v") for each in self._environments)

    def _give_up(self, error: Exception) -> None:
        self._validator = None
        said = error.message if isinstance(error, SchemaError) else f"{type(error).__name__}: {error}"
        self.broken = said if len(said) <= _LONGEST_REASON else f"{said[:_LONGEST_REASON]}…"


def _is_free(config: Any, place: tuple[str, ...]) -> bool:
    """Whether a config has no value at a place, and can take one."""
    if not isinstance(config, dict):
        return False
    return place[0] not in config or (len(place) > 1 and _is_free(config[place[0]], place[1:]))


class _PlacedText(str):
    """A text of a config that knows its field: a format checker is given nothing but the value."""

    __slots__ = ("field",)
    field: Field


def _placed(value: Any, field: Field = ()) -> Any:
    """Copy a config; each text of the copy knows its field."""
    if isinstance(value, str):
        text = _PlacedText(value)
        text.field = field
        return text
    if isinstance(value, dict):
        return {key: _placed(inner, (*field, key)) for key, inner in value.items()}
    if isinstance(value, list):
        return [_placed(inner, (*field, index)) for index, inner in enumerate(value)]
    return value


@contextmanager
def _time_limit() -> Iterator[None]:
    """Raise TimeoutError if what is done within takes too long.

    A pattern such as `^(a+)+$` can take for ever. In a thread it would halt all others, since it never lets go of the
    interpreter; a signal does interrupt it. Computing time is counted, so that a busy machine makes no difference.
    """
    signal.signal(signal.SIGVTALRM, _took_too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, _LONGEST_CHECK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def _took_too_long(*_: object) -> None:
    raise TimeoutError(f"checking a config takes more than {_LONGEST_CHECK_S:g} s")


def possible_references(config: dict[str, Any]) -> tuple[tuple[Field, str], ...]:
    """Find every text that looks like a reference; all count while the schema is not known."""
    return tuple((field, text) for field, text in texts(config) if is_reference(text))


def _validator(schema: dict[str, Any], is_path: Callable[[object], bool]) -> Draft202012Validator:
    Draft202012Validator.check_schema(schema)
    required = [name for name in schema.get("required", []) if name != _GIVEN_BY_US]
    formats = FormatChecker(formats=())
    formats.checks(_ABSOLUTE_PATH)(is_path)
    # An empty registry fetches nothing: a `$ref` to another document is an error, never a request.
    return Draft202012Validator({**schema, "required": required}, registry=Registry(), format_checker=formats)


def _explain(error: ValidationError, root: dict[str, Any]) -> list[Problem]:
    where = ".".join(["config", *map(str, error.absolute_path)])
    schema = error.schema if isinstance(error.schema, dict) else {}
    fields: dict[str, Any] = schema.get("properties", {})
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        known = [name for name in fields if name != _GIVEN_BY_US]
        return [_unknown(str(name), where, known, root) for name in error.instance if name not in fields]
    if error.validator == "required" and isinstance(error.instance, dict):
        return [
            Problem(field=f"{where}.{name}", message=f"missing; allowed: {_allowed(fields.get(name, {}))}")
            for name in schema.get("required", [])
            if name not in error.instance
        ]
    said = f"{_value(error.instance)} is not allowed; {_instead(error.instance, schema)}"
    return [Problem(field=where, message=said, value=brief(error.instance))]


def _unknown(name: str, where: str, known: list[str], root: dict[str, Any]) -> Problem:
    """Report an unknown field, with the place where a field of that name belongs, or similar names."""
    elsewhere = [".".join(field) for field in _fields(root, root) if field[-1] == name]
    near = elsewhere[:3] or _nearest(name, known)
    hint = f"did you mean {', '.join(near)}?" if near else f"known fields: {listed(known, _FIELDS_NAMED)}"
    return Problem(field=f"{where}.{name}", message=f"unknown field; {hint}", near=near)


def _fields(
    schema: object, root: dict[str, Any], at: tuple[str, ...] = (), levels: int = _DEEPEST
) -> list[tuple[str, ...]]:
    """List the fields of a schema at every level, including conditional ones."""
    if not isinstance(schema, dict) or not levels:
        return []
    found: list[tuple[str, ...]] = []
    for name, inner in schema.get("properties", {}).items():
        found += [(*at, name), *_fields(inner, root, (*at, name), levels - 1)]
    reference = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    branches = [root.get("$defs", {}).get(reference), schema.get("then"), schema.get("else")]
    branches += [each for keyword in ("allOf", "anyOf", "oneOf") for each in schema.get(keyword, ())]
    for branch in branches:
        found += _fields(branch, root, at, levels - 1)
    return list(dict.fromkeys(found))


def _instead(given: object, schema: dict[str, Any]) -> str:
    """Suggest what to give instead: nothing, the nearest of many names, or all that is allowed."""
    if "const" in schema and schema["const"] is None:
        return "leave it out"
    names = [name for name in schema.get("enum", []) if isinstance(name, str)]
    near = _nearest(given, names) if isinstance(given, str) else []
    if len(names) <= _VALUES_NAMED or not near:
        return f"allowed: {_allowed(schema)}"
    return f"did you mean {', '.join(near)}?"


def _nearest(name: str, known: list[str]) -> list[str]:
    """Similar names, and variants of the nearest: `dqnn` gives dqn, dqn_atari, dqn_jax."""
    near = near_names(name, known)
    variants = [each for each in known if near and each.startswith(f"{near[0]}_")]
    return list(dict.fromkeys([*near, *variants]))[:3]


def _value(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"


_LIMITS = {
    "minimum": "at least",
    "exclusiveMinimum": "more than",
    "maximum": "at most",
    "exclusiveMaximum": "less than",
    "minLength": "length at least",
    "maxLength": "length at most",
    "minItems": "items at least",
    "maxItems": "items at most",
    "multipleOf": "a multiple of",
    "pattern": "matching",
}


def _allowed(schema: object) -> str:
    """Describe what a schema allows."""
    if not isinstance(schema, dict):
        return "anything" if schema else "nothing"
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            return " or ".join(dict.fromkeys(_allowed(each) for each in schema[keyword]))
    if "enum" in schema:
        more = f", … ({len(schema['enum'])} in all)" if len(schema["enum"]) > _VALUES_NAMED else ""
        return ", ".join(_value(each) for each in schema["enum"][:_VALUES_NAMED]) + more
    if "const" in schema:
        return _value(schema["const"])
    if schema.get("format") == _ABSOLUTE_PATH:
        return f"an absolute path, or a checkpoint of a run ({FORM})"
    kind = schema.get("type", "object" if "$ref" in schema else "anything")
    parts = [" or ".join(kind) if isinstance(kind, list) else str(kind)]
    parts += [f"{words} {schema[keyword]}" for keyword, words in _LIMITS.items() if keyword in schema]
    return ", ".join(parts)
