"""Deletes experiments that are not being played: first the runs of their shards, then their folders."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

from mosaic_bus.commands import Delete, DeletedExperiment, DeletedRun, DeleteResult, KeptRun, Runs
from mosaic_bus.errors import CommandRefusedError
from mosaic_bus.refusals import RefusalCode

if TYPE_CHECKING:
    from mosaic_bus.client import BusClient
    from mosaic_bus.commands import DeleteExperiment
    from mosaic_bus.messages import ExperimentState
    from mosaic_services.experiments.folder import ExperimentFolder

__all__ = ["delete"]

_ANSWER_S = 600.0
_FIND_S = 30.0
_RUNS_AT_ONCE = 100
_MOST_RUNS = 100_000


async def delete(
    bus: BusClient, folder: ExperimentFolder, state: ExperimentState, command: DeleteExperiment
) -> DeletedExperiment:
    """Delete an experiment, or only say what it takes; keep it if a run of it has to be kept."""
    deleted: list[DeletedRun] = []
    kept: list[KeptRun] = []
    names = [] if command.keep_runs else await _shards(bus, folder)
    for at in range(0, len(names), _RUNS_AT_ONCE):
        some = Delete(runs=names[at : at + _RUNS_AT_ONCE], dry_run=command.dry_run)
        found = await bus.request("scheduler", some, timeout=_ANSWER_S)
        deleted += found.deleted
        kept += found.kept
    size = await asyncio.to_thread(_size, folder)
    is_deleted = not (command.dry_run or kept)
    if is_deleted:
        await asyncio.to_thread(folder.clear)
    runs = DeleteResult(deleted=deleted, kept=kept)
    return DeletedExperiment(
        experiment=state.experiment, deleted=is_deleted, episodes=state.done, bytes=size, runs=runs
    )


async def _shards(bus: BusClient, folder: ExperimentFolder) -> list[str]:
    """Return the runs of all starts of an experiment: the user may have given their group to other runs, too."""
    plan = folder.read_plan() or {}
    try:
        found = await bus.request("scheduler", Runs(group=str(plan.get("group")), limit=_MOST_RUNS), timeout=_FIND_S)
    except CommandRefusedError as error:
        if error.code == RefusalCode.UNKNOWN_GROUP:
            return []
        raise
    name = re.compile(rf"{re.escape(folder.name)}-shard\d+")
    return [each.run for each in found.runs if name.fullmatch(each.name)]


def _size(folder: ExperimentFolder) -> int:
    return sum(path.lstat().st_blocks * 512 for path in folder.path.rglob("*"))
