"""Waits for all runs of a group: one line of progress until they are final and their telemetry is stored."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from rich.live import Live

from mosaic_bus.commands import Groups, Runs, Summaries
from mosaic_bus.messages import RunStateName
from mosaic_services.cli.display.output import console, say
from mosaic_services.cli.sweep.progress import progress
from mosaic_services.cli.wait.patience import Outage
from mosaic_services.cli.wait.runs import Watched, exit_code

if TYPE_CHECKING:
    from collections.abc import Callable

    from mosaic_bus import Bus
    from mosaic_bus.commands import GroupState
    from mosaic_bus.messages import RunState, RunSummary

__all__ = ["runs_of", "summaries_of", "wait_for_group"]

_POLL_S = 0.5
_MOST_AT_ONCE = 1000
_ANSWER_S = 20.0
# Nobody reads a line for each of thousands of runs: without a terminal there is one for each so many percent.
_TOLD_EVERY = 5


def runs_of(bus: Bus, group: str) -> list[RunState]:
    """All runs of a group, in the order of their submission."""
    return bus.request("scheduler", Runs(group=group, limit=100_000), timeout=_ANSWER_S).runs[::-1]


def summaries_of(bus: Bus, runs: list[str]) -> dict[str, RunSummary]:
    """What telemetry knows of some runs."""
    found: dict[str, RunSummary] = {}
    for start in range(0, len(runs), _MOST_AT_ONCE):
        wanted = runs[start : start + _MOST_AT_ONCE]
        answer = bus.request("telemetry", Summaries(runs=wanted, limit=len(wanted)), timeout=_ANSWER_S)
        found.update({each.run: each for each in answer.summaries})
    return found


def wait_for_group(bus: Bus, group: str, *, quiet: bool) -> int:
    """Wait until all runs of a group are final and stored; return the exit code. A repeated run does not count."""
    if quiet:
        state = _wait_final(bus, group, lambda _state: None)
    elif sys.stdout.isatty():
        with Live("", console=console(), transient=True, auto_refresh=False) as live:
            state = _wait_final(
                bus, group, lambda state: live.update(progress(state.counts, state.total), refresh=True)
            )
    else:
        state = _wait_final(bus, group, _Teller().tell)
    _wait_stored(bus, runs_of(bus, group))
    return exit_code([RunStateName(name) for name, count in state.counts.items() if count])


class _Teller:
    """Prints the line of progress whenever it has moved by some percent."""

    def __init__(self) -> None:
        self._told = -1

    def tell(self, state: GroupState) -> None:
        running = sum(count for name, count in state.counts.items() if not RunStateName(name).final)
        step = (state.total - running) * 100 // max(1, state.total) // _TOLD_EVERY
        if step != self._told:
            self._told = step
            say(progress(state.counts, state.total))
            sys.stdout.flush()


def _wait_final(bus: Bus, group: str, changed: Callable[[GroupState], None]) -> GroupState:
    outage = Outage()
    while True:
        with outage:
            (state,) = bus.request("scheduler", Groups(group=group), timeout=5.0).groups
            changed(state)
            if all(RunStateName(name).final for name, count in state.counts.items() if count):
                return state
        time.sleep(_POLL_S)


def _wait_stored(bus: Bus, runs: list[RunState]) -> None:
    """Wait for the telemetry of runs that have ended, by the same rule as `mosaic submit --wait`."""
    watched = {each.run: Watched(each.run, state=each) for each in runs}
    outage = Outage()
    while True:
        now = time.monotonic()
        waiting = [each for each in watched.values() if not each.done(now) or not each.moved_at]
        if not waiting:
            return
        with outage:
            found = summaries_of(bus, [each.run for each in waiting])
            for each in waiting:
                if each.state is not None:
                    each.update(each.state, found.get(each.run), now)
        if outage.silent:
            for each in waiting:
                each.heard_nothing(time.monotonic())
        if any(not each.done(now) for each in waiting):
            time.sleep(_POLL_S)
