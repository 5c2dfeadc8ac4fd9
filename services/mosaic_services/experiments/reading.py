"""Reads experiment files: YAML, Python, and the scripts of the original MOSAIC."""

from __future__ import annotations

import re
from types import UnionType
from typing import TYPE_CHECKING, Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from mosaic_bus.refusals import explain
from mosaic_bus.wording import did_you_mean
from mosaic_services.checkpoint_references import is_reference
from mosaic_services.config_fields import put
from mosaic_services.experiments.errors import ExperimentError
from mosaic_services.experiments.lineups import expand_lineups
from mosaic_services.experiments.model import Experiment
from mosaic_services.experiments.python_files import read_python
from mosaic_services.specs import SpecError, locate, read_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["make_experiment", "read_experiments"]

# Fields whose value is a map with known fields of its own.
_PARTS = {
    name: model
    for name, field in Experiment.model_fields.items()
    for model in (get_args(field.annotation) if get_origin(field.annotation) is UnionType else [field.annotation])
    if isinstance(model, type) and issubclass(model, BaseModel)
}


def read_experiments(path: Path, overrides: Sequence[tuple[list[str], Any]] = ()) -> tuple[list[Experiment], list[str]]:
    """Read the experiments of a file, and notes on what of it has no effect; raise SpecError if it is not right."""
    notes: list[str] = []
    if path.suffix == ".py":
        documents, notes = read_python(path)
    else:
        documents = [read_file(path, "experiment")]
    for document in documents:
        document.setdefault("name", _name_from(path))
        for keys, value in overrides:
            put(document, keys, value)
        _find_checkpoints(document, path)
    return [make_experiment(document, str(path)) for document in documents], notes


def make_experiment(document: dict[str, Any], where: str) -> Experiment:
    """Check a document; `where` names it in errors, with the line if it is a YAML file."""
    for key, value in document.items():
        _require_known(key, tuple(Experiment.model_fields), locate(where, [key]), "")
        if key in _PARTS and isinstance(value, dict):
            for inner in value:
                known = tuple(_PARTS[key].model_fields)
                _require_known(str(inner), known, locate(where, [key, inner]), f"{key}: ")
    for key in ("environment", "operators"):
        if key not in document:
            raise SpecError(f"{where}: {key} is missing", _EXAMPLES[key])
    try:
        experiment = Experiment.model_validate(document)
    except ValidationError as error:
        # Pydantic adds names of types to the place of a value in a union.
        keys = [each for each in error.errors()[0]["loc"] if not (isinstance(each, str) and "[" in each)]
        raise SpecError(f"{locate(where, keys)}: {explain(error)}", detail=str(error)) from error
    try:
        expand_lineups(experiment)
    except ExperimentError as error:
        raise SpecError(f"{locate(where, error.field)}: {error.message}", error.hint) from error
    return experiment


_EXAMPLES = {
    "environment": "for example: environment: {id: CartPole-v1}",
    "operators": "for example: operators: {random: {worker: baseline, behavior: random}}",
}


def _require_known(key: str, known: tuple[str, ...], where: str, part: str) -> None:
    if key not in known:
        hint = did_you_mean(key, known) or f"the fields are: {', '.join(known)}"
        raise SpecError(f"{where}: {part}field {key!r} is unknown", hint)


def _find_checkpoints(document: dict[str, Any], path: Path) -> None:
    """Make paths of checkpoints absolute: they are relative to the file."""
    operators = document.get("operators")
    for name, operator in operators.items() if isinstance(operators, dict) else ():
        found = operator.get("checkpoint") if isinstance(operator, dict) else None
        if isinstance(found, str) and found and not is_reference(found):
            put(document, ["operators", name, "checkpoint"], str((path.resolve().parent / found).resolve()))


def _name_from(path: Path) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", path.stem).strip("-")[:64] or "experiment"
