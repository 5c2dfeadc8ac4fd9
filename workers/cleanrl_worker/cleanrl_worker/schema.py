"""Parts of the config's JSON Schema that pydantic cannot express: requirements of modes, and hyperparameters."""

from collections.abc import Mapping, Sequence
from typing import Any

from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from mosaic_worker.metadata import AlgorithmCard, Parameter

__all__ = ["complete"]

_JSON_TYPES = {"bool": "boolean", "int": "integer", "float": "number", "str": "string"}
_GIVEN = {"env_id": {"type": "string", "minLength": 1}, "total_timesteps": {"type": "integer", "minimum": 1}}


def complete(
    schema: dict[str, Any],
    default_algo: str,
    needs: Mapping[str, Sequence[str]],
    instead: Mapping[str, str],
    cards: Sequence[AlgorithmCard],
) -> dict[str, Any]:
    """Add to the schema of CleanRLWorkerConfig what depends on `algo` and `extras.mode`.

    `needs` lists the fields that each mode requires, and `instead` the field that may replace one of them.
    """
    properties = {name: field for name, field in schema["properties"].items() if name != "raw"}
    properties["algo"] = {**properties["algo"], "enum": list(DEFAULT_ALGO_REGISTRY)}
    modes = [
        {"if": _mode_is(mode, without=instead.get(name)), "then": _required([name])}
        for mode, names in needs.items()
        for name in names
    ]
    no_training = {**_extras({"mode": {"not": {"const": "train"}}}, ["mode"]), "required": ["extras"]}
    modes.append({"if": no_training, "then": _extras({"curriculum_schedule": {"const": None}})})
    algorithms = [
        {"if": _algo_is(card.name, default_algo), "then": _extras({"algo_params": _algo_params(card)})}
        for card in cards
        if card.runs
    ]
    return {**schema, "properties": properties, "allOf": [*modes, *algorithms]}


def _extras(properties: dict[str, Any], required: Sequence[str] = ()) -> dict[str, Any]:
    return {"properties": {"extras": {"properties": properties, "required": list(required)}}}


def _mode_is(mode: str, without: str | None = None) -> dict[str, Any]:
    """Return the condition for a mode; `train` is the default, and with a schedule it is a curriculum."""
    absent = {without.removeprefix("extras."): {"enum": [None, ""]}} if without else {}
    if mode == "train":
        return _extras({"mode": {"const": "train"}, "curriculum_schedule": {"const": None}})
    if mode == "curriculum":
        is_given = {"not": {"const": None}}
        found = _extras({"mode": {"const": "train"}, "curriculum_schedule": is_given}, ["curriculum_schedule"])
    else:
        found = _extras({"mode": {"const": mode}, **absent}, ["mode"])
    return {**found, "required": ["extras"]}


def _required(names: Sequence[str]) -> dict[str, Any]:
    top = [name for name in names if not name.startswith("extras.")]
    inner = [name.removeprefix("extras.") for name in names if name.startswith("extras.")]
    text = {"type": "string", "minLength": 1}
    found = _extras(dict.fromkeys(inner, text), inner) if inner else {"properties": {}}
    found["properties"].update({name: _GIVEN[name] for name in top})
    return {**found, "required": top}


def _algo_is(name: str, default: str) -> dict[str, Any]:
    return {"properties": {"algo": {"const": name}}, "required": [] if name == default else ["algo"]}


def _algo_params(card: AlgorithmCard) -> dict[str, Any]:
    return {
        "description": f"Hyperparameters of {card.name}, {card.source}",
        "properties": {each.name: _field(each) for each in card.parameters},
        "additionalProperties": False,
    }


def _field(parameter: Parameter) -> dict[str, Any]:
    """Return the schema of a parameter; one whose default is None may be null."""
    kind = _JSON_TYPES[parameter.type]
    field = {"type": kind} if parameter.default is not None else {"type": [kind, "null"]}
    return {**field, "default": parameter.default, "description": parameter.help}
