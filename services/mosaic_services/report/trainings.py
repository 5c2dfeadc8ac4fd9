"""The learning curves of the runs that operators of an experiment come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mosaic_bus.commands import Series
from mosaic_bus.errors import CommandRefusedError
from mosaic_services.report.source import Training, read_experiment

if TYPE_CHECKING:
    from pathlib import Path

    from mosaic_bus import Bus

__all__ = ["read_trainings"]

_POINTS = 1000


def read_trainings(bus: Bus, folder: Path) -> list[Training]:
    """Ask for the curves of the trainings that an experiment's folder names; a run that was deleted has none."""
    found = []
    for name, operator in (read_experiment(folder).get("operators") or {}).items():
        run = operator.get("training_run")
        if not run:
            continue
        try:
            command = Series(runs=[run], metrics=["episode_return"], max_points=_POINTS)
            curve = bus.request("telemetry", command).only
        except (CommandRefusedError, ValueError):  # deleted, or it has none
            continue
        times = [moment for moment in curve.times if moment is not None]
        began = min(times, default=0.0)
        seconds = [None if moment is None else moment - began for moment in curve.times]
        label = operator.get("algorithm") or name
        found.append(Training(str(label), str(run), curve.steps, curve.values, seconds))
    return found
