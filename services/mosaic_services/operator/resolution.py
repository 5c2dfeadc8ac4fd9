"""Finds the checkpoints that operators name, once for the whole experiment, so that all shards play the same ones."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from mosaic_bus.commands import Checkpoints, Show
from mosaic_bus.errors import CommandRefusedError
from mosaic_bus.refusals import RefusalCode, RefusalDetails
from mosaic_services.attempt_folder.layout import ATTEMPT
from mosaic_services.checkpoint_references import FORM, is_reference, parse, pick

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mosaic_bus.client import BusClient
    from mosaic_services.experiments.model import Operator

__all__ = ["resolve"]

_ANSWER_S = 10.0


async def resolve(
    bus: BusClient, operators: Mapping[str, Operator], runs: Path
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """For each operator that names a run: the exact checkpoint, and where it comes from. Also notes for the user."""
    found, notes = {}, []
    for name, operator in operators.items():
        if operator.checkpoint is not None and is_reference(operator.checkpoint):
            found[name], note = await _resolve(bus, name, operator.checkpoint, runs)
            notes += note
    return found, notes


async def _resolve(bus: BusClient, name: str, reference: str, runs: Path) -> tuple[dict[str, Any], list[str]]:
    field = f"operators.{name}.checkpoint"
    parsed = parse(reference)
    if parsed is None:
        said = f"{field}: {reference!r} is no reference; write {FORM}"
        raise CommandRefusedError(RefusalCode.INVALID_EXPERIMENT, said, RefusalDetails(field=field, value=reference))
    try:
        shown = await bus.request("scheduler", Show(run=parsed[0]), timeout=_ANSWER_S)
    except CommandRefusedError as error:
        raise error.about(f"{field}: ", field=field) from error
    run = shown.run
    origin = {
        "training_run": run.run,
        "training_name": run.name,
        "algorithm": _algorithm(shown.spec.config),
        "training_seed": shown.spec.config.get("seed"),
        "training_worker": run.worker,
        "training_packages": _packages(runs / run.run / str(run.attempt)),
    }
    saved = []
    try:
        saved = (await bus.request("telemetry", Checkpoints(run=run.run), timeout=_ANSWER_S)).checkpoints
    except CommandRefusedError as error:
        if error.code != RefusalCode.UNKNOWN_RUN:
            raise
    chosen = pick(parsed[1], saved)
    if chosen is not None and chosen.step is not None:
        return {"checkpoint": f"run:{run.run}@{chosen.step}", "checkpoint_step": chosen.step, **origin}, []
    if chosen is None and run.state.final:
        said = f"{field}: run {run.name} has no {parsed[1]} checkpoint, and it has ended"
        details = RefusalDetails(field=field, value=reference)
        raise CommandRefusedError(RefusalCode.MISSING_CHECKPOINT, said, details)
    notes = (
        [] if chosen else [f"operator {name} waits for the {parsed[1]} checkpoint of {run.name}, which is {run.state}"]
    )
    return {"checkpoint": f"run:{run.run}@{parsed[1]}", **origin}, notes


def _packages(attempt: Path) -> str | None:
    """The environment of packages that a training ran in, named by the hash of its lock; None if that is not here."""
    try:
        interpreter = orjson.loads((attempt / ATTEMPT).read_bytes())["argv"][0]
    except (OSError, orjson.JSONDecodeError, KeyError, IndexError, TypeError):
        return None
    return Path(str(interpreter)).parent.parent.name


def _algorithm(config: Mapping[str, Any]) -> str | None:
    """The algorithm that a training names; workers call the key differently."""
    found = next((config[key] for key in ("algo", "algorithm", "method", "agent") if config.get(key)), None)
    return None if found is None else str(found)
