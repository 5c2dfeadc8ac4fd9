"""Waits for all runs of a group, with one line of progress."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rich.live import Live

from mosaic_bus.commands import Runs, Summaries
from mosaic_bus.messages import RunStateName
from mosaic_services.cli.display.output import console, say
from mosaic_services.cli.sweep.progress import progress
from mosaic_services.cli.wait.runs import Watched, exit_code, wait_until_done

if TYPE_CHECKING:
    from collections.abc import Callable

    from mosaic_bus import Bus
    from mosaic_bus.client import PlainFollower
    from mosaic_bus.messages import RunState, RunSummary

__all__ = ["runs_of", "summaries_of", "wait_for_group"]

_MOST_AT_ONCE = 1000
_ANSWER_S = 20.0
# Without a terminal, a line is printed for each step of this many percent: a group may have thousands of runs.
_TOLD_EVERY = 5


def runs_of(bus: Bus, group: str) -> list[RunState]:
    """All runs of a group, in the order of their submission."""
    return bus.request("scheduler", Runs(group=group, limit=100_000), timeout=_ANSWER_S).runs[::-1]


def summaries_of(bus: Bus, runs: list[str]) -> dict[str, RunSummary]:
    """Summaries of runs, by id."""
    found: dict[str, RunSummary] = {}
    for start in range(0, len(runs), _MOST_AT_ONCE):
        wanted = runs[start : start + _MOST_AT_ONCE]
        answer = bus.request("telemetry", Summaries(runs=wanted, limit=len(wanted)), timeout=_ANSWER_S)
        found.update({each.run: each for each in answer.summaries})
    return found


def wait_for_group(bus: Bus, group: str, *, quiet: bool) -> int:
    """Wait until all runs of a group are final and stored; return the exit code. Repeated runs do not count."""
    with bus.follow(group=group, hosts=False) as view:
        if quiet:
            _wait(view, lambda _counts: None)
        elif sys.stdout.isatty():
            with Live("", console=console(), transient=True, auto_refresh=False) as live:
                _wait(view, lambda counts: live.update(progress(counts, sum(counts.values())), refresh=True))
        else:
            _wait(view, _Teller().tell)
        return exit_code([RunStateName(name) for name in view.counts])


class _Teller:
    """Prints the progress whenever it has moved by a few percent."""

    def __init__(self) -> None:
        self._told = -1

    def tell(self, counts: dict[str, int]) -> None:
        total = sum(counts.values())
        running = sum(count for name, count in counts.items() if not RunStateName(name).final)
        step = (total - running) * 100 // max(1, total) // _TOLD_EVERY
        if step != self._told:
            self._told = step
            say(progress(counts, total))
            sys.stdout.flush()


def _wait(view: PlainFollower, changed: Callable[[dict[str, int]], None]) -> None:
    """Wait until all runs have ended, then for their telemetry."""
    watched: dict[str, Watched] = {run: Watched(run) for run in view.runs}

    def look() -> None:
        watched.update({run: Watched(run) for run in view.runs if run not in watched})
        changed(view.counts)

    wait_until_done(view, watched.values(), look)
