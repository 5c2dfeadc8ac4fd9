"""What `mosaic watch` shows, asked for again and again by a thread of its own, so that the screen never waits."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mosaic_bus.commands import (
    Groups,
    GroupState,
    Hosts,
    Logs,
    Runs,
    Series,
    SeriesResult,
    Show,
    Snapshot,
    SnapshotResult,
    Summaries,
)
from mosaic_bus.errors import BusError, CommandRefusedError, NoAnswerError
from mosaic_bus.messages import FINAL_STATES, HostState, RunState, RunStateName, RunSummary, Usage
from mosaic_services.cli.wait.patience import Outage

if TYPE_CHECKING:
    from mosaic_bus import Bus

__all__ = ["Feed", "View"]

_FINAL = [str(state) for state in FINAL_STATES]
_PLACED = [str(state) for state in RunStateName if not state.final and state is not RunStateName.QUEUED]
_QUEUED = [str(RunStateName.QUEUED)]
_FINAL_SHOWN = 10
# Of a group; more would not fit a screen.
_PLACED_SHOWN = 1000
_QUEUED_SHOWN = 100
_ANSWER_S = 2.0


@dataclass(frozen=True)
class View:
    """One moment of the stack, as far as it is known."""

    runs: list[RunState] = field(default_factory=list)
    hosts: list[HostState] = field(default_factory=list)
    summaries: dict[str, RunSummary] = field(default_factory=dict)
    done: int = 0
    events_per_s: float | None = None
    trouble: str = ""
    loaded: bool = False
    # Only if one group is watched:
    group: GroupState | None = None
    # Only of the run that is looked at closely:
    series: SeriesResult | None = None
    log: list[str] = field(default_factory=list)

    @property
    def active(self) -> list[RunState]:
        """Runs that are not final, oldest first; what waits comes last, for a sweep has more than fit a screen."""
        return sorted(
            (run for run in self.runs if not run.state.final),
            key=lambda run: (run.state is RunStateName.QUEUED, run.submitted_at, run.run),
        )

    @property
    def final(self) -> list[RunState]:
        """Runs that have ended, newest first."""
        return sorted((run for run in self.runs if run.state.final), key=lambda run: -(run.ended_at or run.changed_at))

    def usage(self, run: str) -> Usage | None:
        """What a run's processes use, if a host reports it."""
        reports = (each for host in self.hosts for each in host.attempts if each.run == run)
        return next((each.usage for each in reports), None)

    def run(self, run: str) -> RunState | None:
        """A run by its id."""
        return next((each for each in self.runs if each.run == run), None)


class Feed:
    """Keeps `view` fresh until closed. `focus` names a run to look at closely, `group` the only one to show."""

    def __init__(self, bus: Bus, focus: str | None, interval: float, group: str | None = None) -> None:
        self.view = View()
        self.focus = focus
        # Set once nobody has answered for so long that nobody may be there any more.
        self.gone: NoAnswerError | None = None
        self._group = group
        self._bus = bus
        self._interval = interval
        self._counted: tuple[float, dict[str, int]] | None = None
        self._stop = threading.Event()
        self._wake = threading.Event()
        self.fresh = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mosaic-watch", daemon=True)
        self._thread.start()

    def look_at(self, run: str | None) -> None:
        """Look at a run closely, or at none; ask at once."""
        self.focus = run
        self.view = replace(self.view, series=None, log=[])
        self._wake.set()

    def close(self) -> None:
        """Stop asking."""
        self._stop.set()
        self._wake.set()
        self._thread.join(_ANSWER_S * 2)

    def _run(self) -> None:
        outage = Outage()
        while not self._stop.is_set():
            try:
                with outage:
                    self.view = self._ask()
                self.gone = None
            except NoAnswerError as error:
                self.gone = error
            except BusError as error:
                self.view = replace(self.view, trouble=str(error))
            if outage.silent:
                self.view = replace(self.view, trouble=f"{outage.silent.service} does not answer")
            self.fresh.set()
            self._wake.wait(self._interval)
            self._wake.clear()

    def _ask(self) -> View:
        focus = self.focus
        snapshot, group = self._snapshot()
        runs = list(snapshot.runs)
        if focus and all(run.run != focus for run in runs):
            runs.append(self._bus.request("scheduler", Show(run=focus), timeout=_ANSWER_S).run)
        counted = Runs(states=_FINAL, group=self._group or "", limit=1)
        done = self._bus.request("scheduler", counted, timeout=_ANSWER_S).total
        view = replace(self.view, runs=runs, hosts=snapshot.hosts, group=group, done=done, loaded=True, trouble="")
        self.view = view
        wanted = [run.run for run in runs if run.attempt]
        if wanted:
            found = self._bus.request("telemetry", Summaries(runs=wanted, limit=10_000), timeout=_ANSWER_S).summaries
            view = replace(view, summaries={each.run: each for each in found}, events_per_s=self._rate(found))
        if focus:
            view = self._ask_closely(view, focus)
        return view

    def _snapshot(self) -> tuple[SnapshotResult, GroupState | None]:
        """Runs and hosts as they are now; of a group, only its own runs."""
        if self._group is None:
            return self._bus.request("scheduler", Snapshot(final_limit=_FINAL_SHOWN), timeout=_ANSWER_S), None
        (group,) = self._bus.request("scheduler", Groups(group=self._group), timeout=_ANSWER_S).groups
        runs = []
        for states, limit in ((_PLACED, _PLACED_SHOWN), (_QUEUED, _QUEUED_SHOWN), (_FINAL, _FINAL_SHOWN)):
            wanted = Runs(states=states, group=self._group, limit=limit)
            runs += self._bus.request("scheduler", wanted, timeout=_ANSWER_S).runs
        hosts = self._bus.request("scheduler", Hosts(), timeout=_ANSWER_S).hosts
        return SnapshotResult(version=0, runs=runs, counts={}, hosts=hosts, silent_s={}), group

    def _ask_closely(self, view: View, run: str) -> View:
        try:
            series = self._bus.request(
                "telemetry", Series(run=run, metric="episode_return", max_points=120), timeout=_ANSWER_S
            )
            rows = self._bus.request("telemetry", Logs(run=run, tail=8), timeout=_ANSWER_S).rows
        except CommandRefusedError:  # it has written nothing yet
            return view
        return replace(view, series=series, log=[str(row["line"]) for row in rows])

    def _rate(self, summaries: list[RunSummary]) -> float | None:
        """Events per second since we last asked; an attempt that starts anew counts from zero."""
        now = time.monotonic()
        counts = {each.run: each.events for each in summaries}
        before, self._counted = self._counted, (now, counts)
        if before is None or now <= before[0]:
            return None
        grown = sum(max(0, count - before[1].get(run, count)) for run, count in counts.items())
        return grown / (now - before[0])
