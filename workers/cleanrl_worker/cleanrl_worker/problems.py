"""Problems with the hyperparameters of a config, each with its field."""

from collections.abc import Mapping
from typing import Any

from pydantic_core import InitErrorDetails, PydanticCustomError

from cleanrl_worker.availability import FROM_CONFIG, Script
from mosaic_worker.config import near
from mosaic_worker.metadata import Parameter

__all__ = ["parameter_problems", "problem"]

_NEEDED = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "text"}


def parameter_problems(script: Script, given: Mapping[str, Any]) -> list[InitErrorDetails]:
    """List unknown names and values of the wrong type."""
    known = {each.name: each for each in script.hyperparameters}
    found = []
    for name, value in given.items():
        if why := _why(script, known, name, value):
            found.append(problem(f"extras.algo_params.{name}", value, why))
    return found


def problem(field: str, value: Any, why: str) -> InitErrorDetails:
    """Return a problem in pydantic's form."""
    return {
        "type": PydanticCustomError("refused", "{why}", {"why": why}),
        "loc": tuple(field.split(".")),
        "input": value,
    }


def _why(script: Script, known: Mapping[str, Parameter], name: str, value: Any) -> str:
    if name in FROM_CONFIG:
        return f"give it as {FROM_CONFIG[name]}"
    if name not in known:
        guess = near(name, list(known)) or f"; there are {', '.join(known)}"
        return f"{script.module} ({script.source}) has no such hyperparameter{guess}"
    parameter = known[name]
    if value is None and parameter.default is None:
        return ""
    return "" if _fits(value, parameter.type) else f"{_NEEDED[parameter.type]} is needed, as in {parameter.default!r}"


def _fits(value: Any, kind: str) -> bool:
    """Whether a value has a type of JSON Schema: 25e3 is an integer, true is not."""
    if kind == "bool" or isinstance(value, bool):
        return kind == "bool" and isinstance(value, bool)
    if kind == "int":
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return isinstance(value, int | float if kind == "float" else str)
