"""The state of an experiment as readers see it, made of what its machine keeps. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mosaic_bus.messages import ExperimentState, LineupProgress, ShardProgress

if TYPE_CHECKING:
    from mosaic_services.experiments.records import Records
    from mosaic_services.operator.progress import Progress

__all__ = ["summarise"]


def summarise(name: str, progress: Progress, records: Records, folder: str, version: int) -> ExperimentState:
    """Describe an experiment as it is now: by lineup, with intervals, and by shard."""
    intervals = {lineup: records.interval(lineup) or (None, None) for lineup in progress.wanted}
    lineups = [
        LineupProgress(
            lineup=lineup,
            done=records.count(lineup, wanted),
            wanted=wanted,
            mean_return=records.mean_return(lineup),
            low=intervals[lineup][0],
            high=intervals[lineup][1],
            failures=records.sums[lineup].failures if lineup in records.sums else 0,
            given_up=progress.given_up.get(lineup, ""),
        )
        for lineup, wanted in progress.wanted.items()
    ]
    shards = [
        ShardProgress(
            number=each.number,
            run=each.run,
            state=str(each.state),
            host=each.host,
            done=each.done,
            total=each.total,
            reason=each.reason,
        )
        for each in progress.shards
    ]
    return ExperimentState(
        experiment=name,
        state=progress.state,
        reason=progress.reason,
        done=sum(each.done for each in lineups),
        wanted=sum(each.wanted for each in lineups),
        lineups=lineups,
        shards=shards,
        lost=progress.lost,
        conflicts=progress.conflicts,
        started_at=progress.started_at,
        ended_at=progress.ended_at,
        folder=folder,
        look=progress.look,
        notes=progress.notes,
        version=version,
    )
