"""Makes run specs of YAML files and KEY=VALUE words. Unknown fields are refused, with a suggestion."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import ValidationError

from mosaic_bus.messages import Limits, Resources, Retries, RunSpec
from mosaic_bus.refusals import explain
from mosaic_bus.wording import did_you_mean, near_names
from mosaic_services.config_fields import put

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "FIELDS",
    "SpecError",
    "check_path",
    "load_yaml",
    "locate",
    "make_spec",
    "parse_word",
    "path_of",
    "read_file",
    "split_words",
]

FIELDS = tuple(RunSpec.model_fields)
# Fields with known fields of their own. What `config` may hold, only the worker knows.
_PARTS = {
    name: tuple(model.model_fields)
    for name, model in (("resources", Resources), ("limits", Limits), ("retries", Retries))
}
_LISTS = ("after", "requires", "pythonpath")


class SpecError(Exception):
    """A file, word or value that makes no run. `hint` says what to do; `detail` is shown with -v."""

    def __init__(self, message: str, hint: str = "", *, detail: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.detail = detail


class _Loader(yaml.SafeLoader):
    """A safe loader that reads `1e-3` as a number. YAML 1.1 reads it as text, but rates are written that way."""

    def construct_document(self, node: yaml.Node) -> Any:
        # Makes the loader refuse an anchor that contains itself.
        self.deep_construct = True
        return super().construct_document(node)

    def compose_mapping_node(self, anchor: dict[Any, yaml.Node]) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                if (key.tag, key.value) in seen:  # YAML would silently take the last one
                    raise yaml.composer.ComposerError(None, None, f"{key.value!r} is given twice", key.start_mark)
                seen.add((key.tag, key.value))
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except ValueError as error:  # for example, an impossible date
            raise yaml.constructor.ConstructorError(None, None, str(error), node.start_mark) from error


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def load_yaml(text: str) -> Any:
    """Parse YAML; every problem is raised as a YAMLError."""
    try:
        return yaml.load(text, _Loader)  # noqa: S506 - it is a safe loader
    except RecursionError:
        raise yaml.YAMLError("nested too deep") from None


def locate(where: str, keys: Sequence[object]) -> str:
    """Return `file.yaml:7`, the line of a key or of its closest parent in the file.

    Returns `where` unchanged if it is not a YAML file or has none of the keys.
    """
    try:
        node = yaml.compose(Path(where).read_text(encoding="utf-8"), _Loader)
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return where
    line = 0
    for wanted in keys:
        if isinstance(node, yaml.SequenceNode) and isinstance(wanted, int) and wanted < len(node.value):
            node = node.value[wanted]
            line = node.start_mark.line + 1
            continue
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        found = [(key, value) for key, value in pairs if key.value == str(wanted)]
        if not found:
            break
        line, node = found[-1][0].start_mark.line + 1, found[-1][1]
    return f"{where}:{line}" if line else where


def split_words(words: list[str]) -> tuple[list[Path], list[str]]:
    """Separate files from KEY=VALUE words."""
    files, overrides = [], []
    for word in words:
        if "=" in word and not os.path.exists(word):  # noqa: PTH110 - Path.exists raises for what no file can be called
            overrides.append(word)
        else:
            files.append(Path(word))
    return files, overrides


def read_file(path: Path, what: str = "run") -> dict[str, Any]:
    """Read a map of fields from a YAML or JSON file; `what` names its kind in errors."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        near = _near_files(path)
        raise SpecError(f"{path}: no such file", f"did you mean {', '.join(near)}?" if near else "") from None
    except OSError as error:
        raise SpecError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: not a text file", f"a {what} is a file of YAML or JSON", detail=str(error)) from error
    try:
        document = load_yaml(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        problem = getattr(error, "problem", None) or error
        raise SpecError(f"{path}{where}: not YAML: {problem}", detail=str(error)) from error
    if not isinstance(document, dict):
        raise SpecError(
            f"{path}: {'an' if what[0] in 'aeiou' else 'a'} {what} is a map of fields, this is {_kind(document)}",
            "start with: worker: baseline" if what == "run" else "",
        )
    return {str(key): value for key, value in document.items()}


def _near_files(path: Path) -> list[str]:
    """List files with a similar path; each folder in it may be mistyped."""
    found = [Path(path.anchor)]
    for part in path.parts[1:] if path.anchor else path.parts:
        found = [near for folder in found if folder.is_dir() for near in _near_entries(folder, part)]
    return [str(each) for each in found if each.is_file()]


def _near_entries(folder: Path, name: str) -> list[Path]:
    if (folder / name).exists():
        return [folder / name]
    try:
        names = [each.name for each in folder.iterdir()]
    except OSError:
        return []
    return [folder / near for near in near_names(name, names)]


def _kind(document: object) -> str:
    return "empty" if document is None else f"a {type(document).__name__}"


def path_of(key: str, fields: tuple[str, ...] = FIELDS) -> list[str]:
    """Split a dotted key. A key that is no field of a run means `config.KEY`."""
    keys = key.strip().split(".")
    if not all(keys):
        raise SpecError(f"{key!r} is not a key", "for example: config.seed")
    return keys if keys[0] in fields else ["config", *keys]


def parse_word(word: str, fields: tuple[str, ...] = FIELDS) -> tuple[list[str], Any]:
    """Read `config.seed=3` as (["config", "seed"], 3)."""
    key, _, text = word.partition("=")
    try:
        keys = path_of(key, fields)
    except SpecError:
        raise SpecError(f"{word!r} is not KEY=VALUE", "for example: config.seed=3") from None
    try:
        value = load_yaml(text) if text else ""
    except yaml.YAMLError as error:
        raise SpecError(
            f"{key}: {text!r} is not a YAML value", "quote it: KEY='\"text\"'", detail=str(error)
        ) from error
    return keys, value


def make_spec(
    document: dict[str, Any], overrides: list[str], where: str, given: dict[str, Any] | None = None
) -> RunSpec:
    """Make a spec of a document, KEY=VALUE overrides and fields `given` verbatim; `where` names it in errors."""
    fields = dict(document)
    replaced: set[tuple[str, ...]] = {(name,) for name in given or {}}
    for word in overrides:
        keys, value = parse_word(word)
        put(fields, keys, value)
        replaced.add(tuple(keys))
    fields.update(given or {})

    def place(keys: Sequence[object]) -> str:
        """Name the source of a value: a line of the file, or the command line."""
        given_here = any(tuple(keys[: len(each)]) == each for each in replaced)
        return "command line" if given_here else locate(where, keys)

    for name in _LISTS:
        if isinstance(fields.get(name), str):
            fields[name] = [fields[name]]
    for key in fields:
        check_path([key], place([key]))
    for part in _PARTS:
        if isinstance(fields.get(part), dict):
            for key in fields[part]:
                check_path([part, str(key)], place([part, key]))
    if "worker" not in fields:
        raise SpecError(f"{where}: no worker is given", "add: worker: baseline   (mosaic workers list)")
    try:
        return RunSpec.model_validate(fields)
    except ValidationError as error:
        raise SpecError(f"{place(error.errors()[0]['loc'])}: {explain(error)}", detail=str(error)) from error


def check_path(keys: list[str], where: str) -> None:
    """Refuse an unknown field, with a suggestion."""
    key = keys[0]
    if key not in FIELDS:
        near = (
            "a file with a sweep is submitted with: mosaic sweep FILE" if key == "sweep" else did_you_mean(key, FIELDS)
        )
        raise SpecError(
            f"{where}: field {key!r} is unknown",
            near or f"the fields are: {', '.join(FIELDS)}\noptions of the worker go under config:",
        )
    known = _PARTS.get(key)
    if known and len(keys) > 1 and keys[1] not in known:
        hint = did_you_mean(keys[1], known) or f"the fields are: {', '.join(known)}"
        raise SpecError(f"{where}: {key}: field {keys[1]!r} is unknown", hint)
