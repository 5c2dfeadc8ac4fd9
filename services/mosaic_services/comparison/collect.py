"""Asks a stack for what a comparison needs: runs by name or group, their specs, scores and curves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mosaic_bus.commands import Runs, Series, Show, Summaries
from mosaic_bus.errors import CommandRefusedError
from mosaic_bus.refusals import RefusalCode
from mosaic_services.comparison.folding import Setting, fold
from mosaic_services.sweeps.trials import metric_value

if TYPE_CHECKING:
    from mosaic_bus import Bus
    from mosaic_bus.commands import Curve
    from mosaic_bus.messages import RunSpec, RunState

__all__ = ["Collected", "collect", "resolve"]

_MOST_RUNS = 1000
# Of a scalar, the mean of this many last points; of returns, telemetry keeps the mean of the last 100 episodes itself.
_LAST_POINTS = 100
_ALL_POINTS = 100_000
_RUNS_AT_ONCE = 20


@dataclass(frozen=True)
class Collected:
    """Runs with what is known of them, in the order in which they were asked for; `scores` lacks those without one."""

    states: dict[str, RunState]
    specs: dict[str, RunSpec]
    scores: dict[str, float]
    curves: dict[str, Curve]

    def fold(self, by: list[str] | None) -> list[Setting]:
        """Group the runs that have a score into settings; raise `KeyError` if no run has one of the keys."""
        names = {run: state.name for run, state in self.states.items()}
        return fold({run: self.specs[run] for run in self.scores}, by, names)


def collect(bus: Bus, names: list[str], metric: str, points: int = 400) -> Collected:
    """Read runs and groups; refused as `runs` is if a name is neither."""
    states = {state.run: state for name in names for state in resolve(bus, name)}
    specs = {run: bus.request("scheduler", Show(run=run)).spec for run in states}
    found = bus.request("telemetry", Summaries(runs=list(states))).summaries if states else []
    summaries = {each.run: each for each in found}
    curves = _curves(bus, list(states), metric, points)
    every = {} if metric == "episode_return" else _curves(bus, list(states), metric, _ALL_POINTS)
    scores = {}
    for run in states:
        value = metric_value(summaries.get(run), metric) if metric == "episode_return" else _last(every.get(run))
        if value is not None:
            scores[run] = value
    return Collected(states, specs, scores, curves)


def resolve(bus: Bus, name: str) -> list[RunState]:
    """The run of that id or name, or the runs of that group; refused as `runs` is if it is neither."""
    try:
        return bus.request("scheduler", Runs(runs=[name])).runs
    except CommandRefusedError as error:
        if error.code != RefusalCode.UNKNOWN_RUN:
            raise
        try:
            found = bus.request("scheduler", Runs(group=name, limit=_MOST_RUNS)).runs
        except CommandRefusedError:
            raise error from None
        if not found:
            raise
        return list(reversed(found))


def _curves(bus: Bus, runs: list[str], metric: str, points: int) -> dict[str, Curve]:
    """Read a series of each run; those without a point are left out."""
    found: dict[str, Curve] = {}
    for at in range(0, len(runs), _RUNS_AT_ONCE):
        asked = Series(runs=runs[at : at + _RUNS_AT_ONCE], metrics=[metric], max_points=points)
        try:
            answer = bus.request("telemetry", asked, timeout=60.0)
        except CommandRefusedError as error:
            if error.code == RefusalCode.UNKNOWN_RUN:  # of a single run
                continue
            raise
        found |= {each.run: each.curves[0] for each in answer.runs if each.curves[0].points}
    return found


def _last(curve: Curve | None) -> float | None:
    known = [value for value in (curve.values if curve else []) if value is not None][-_LAST_POINTS:]
    return sum(known) / len(known) if known else None
