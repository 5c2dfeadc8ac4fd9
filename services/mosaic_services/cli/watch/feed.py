"""Collects what `mosaic watch` shows in a thread of its own, so that the screen never blocks."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mosaic_bus.commands import Curve, GroupState, Logs, Runs, Series, Summaries
from mosaic_bus.errors import BusError, CommandRefusedError, NoAnswerError
from mosaic_bus.messages import HostState, RunState, RunStateName, RunSummary, Usage
from mosaic_services.cli.wait.silence import require_answers

if TYPE_CHECKING:
    from mosaic_bus import Bus
    from mosaic_bus.client import PlainFollower

__all__ = ["Feed", "View"]

_FINAL_SHOWN = 10
# Queued runs of a group; more do not fit a screen.
_QUEUED_SHOWN = 100
_ANSWER_S = 2.0
# Changes are gathered for this long before they are shown, and the rate of events is measured over the second.
_PACE_S = 0.2
_RATE_S = 1.0
# How often the log of a live run is asked for.
_LOG_S = 1.0


@dataclass(frozen=True)
class View:
    """A snapshot of the stack, as far as it is known."""

    runs: list[RunState] = field(default_factory=list)
    hosts: list[HostState] = field(default_factory=list)
    summaries: dict[str, RunSummary] = field(default_factory=dict)
    done: int = 0
    events_per_s: float | None = None
    trouble: str = ""
    loaded: bool = False
    # Only if one group is watched:
    group: GroupState | None = None
    # Only for the open run:
    series: Curve | None = None
    log: list[str] = field(default_factory=list)

    @property
    def active(self) -> list[RunState]:
        """Runs that are not final, oldest first; waiting runs come last, because a sweep may have thousands."""
        return sorted(
            (run for run in self.runs if not run.state.final),
            key=lambda run: (run.state is RunStateName.QUEUED, run.submitted_at, run.run),
        )

    @property
    def final(self) -> list[RunState]:
        """Runs that have ended, newest first."""
        return sorted((run for run in self.runs if run.state.final), key=lambda run: -(run.ended_at or run.changed_at))

    def usage(self, run: str) -> Usage | None:
        """Resource usage of a run, if its host reports it."""
        reports = (each for host in self.hosts for each in host.attempts if each.run == run)
        return next((each.usage for each in reports), None)

    def run(self, run: str) -> RunState | None:
        """A run by its id."""
        return next((each for each in self.runs if each.run == run), None)


class Feed:
    """Keeps `view` up to date until closed. `focus` is the open run, `group` the only group to show."""

    def __init__(self, bus: Bus, focus: str | None, group: str | None = None) -> None:
        self.view = View()
        self.focus = focus
        # Set once a service has been silent for longer than `cli.outage_s`.
        self.gone: NoAnswerError | None = None
        self._group = group
        self._bus = bus
        self._counted: tuple[float, dict[str, int]] | None = None
        # An open run that ended long ago, and the latest details of the open run.
        self._old: tuple[RunState, RunSummary | None] | None = None
        self._asked: tuple[str, RunSummary | None, float] | None = None
        # Guards `focus` and `view` together: a view with details of a run that is no longer open is never shown.
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._wake = threading.Event()
        self.fresh = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mosaic-watch", daemon=True)
        self._thread.start()

    def look_at(self, run: str | None) -> None:
        """Open a run, or none."""
        with self._lock:
            self.focus = run
            self.view = replace(self.view, series=None, log=[])
            self._asked = None
        self._wake.set()

    def close(self) -> None:
        """Stop following."""
        self._stop.set()
        self._wake.set()
        self._thread.join(_ANSWER_S * 2)

    def _run(self) -> None:
        began = time.monotonic()
        while not self._stop.is_set():
            try:
                with self._bus.follow(group=self._group or "", final_limit=_FINAL_SHOWN) as live:
                    self._keep_looking(live)
            except NoAnswerError as error:
                self._note_silence({error.service: time.monotonic() - began})
            except BusError as error:
                self._say(str(error))
            self.fresh.set()
            self._wake.wait(_RATE_S)

    def _keep_looking(self, live: PlainFollower) -> None:
        while not self._stop.is_set():
            self._note_silence(live.silent)
            self._look(live)
            self.fresh.set()
            live.wait(_RATE_S)
            self._wake.wait(_PACE_S)
            self._wake.clear()

    def _note_silence(self, silent: dict[str, float]) -> None:
        self._say(", ".join(f"{service} does not answer" for service in silent))
        try:
            require_answers(silent)
            self.gone = None
        except NoAnswerError as error:
            self.gone = error

    def _say(self, trouble: str) -> None:
        with self._lock:
            self.view = replace(self.view, trouble=trouble)

    def _look(self, live: PlainFollower) -> None:
        focus = self.focus
        counts, states, summaries = live.counts, list(live.runs.values()), live.summaries
        view = replace(
            self.view,
            runs=self._shown(states) if self._group else states,
            hosts=list(live.hosts.values()),
            summaries=summaries,
            done=sum(count for state, count in counts.items() if RunStateName(state).final),
            events_per_s=self._rate(summaries),
            loaded=True,
            group=_group_state(self._group, states, counts) if self._group and states else None,
        )
        if focus and not view.trouble:
            with contextlib.suppress(BusError):  # shown as trouble as soon as its heartbeat is missed
                view = self._look_closely(view, focus)
        with self._lock:
            if self.focus != focus:
                view, self._asked = replace(view, series=None, log=[]), None
            self.view = view

    @staticmethod
    def _shown(states: list[RunState]) -> list[RunState]:
        """Runs of a group that may fit a screen: all that are placed, the first that wait, the last that ended."""
        queued = sorted((each for each in states if each.state is RunStateName.QUEUED), key=lambda each: each.run)
        final = sorted((each for each in states if each.state.final), key=lambda each: -(each.ended_at or 0.0))
        placed = [each for each in states if not each.state.final and each.state is not RunStateName.QUEUED]
        return [*placed, *queued[:_QUEUED_SHOWN], *final[:_FINAL_SHOWN]]

    def _look_closely(self, view: View, run: str) -> View:
        if view.run(run) is None:
            view = self._with_old(view, run)
        summary, state = view.summaries.get(run), view.run(run)
        now = time.monotonic()
        # The log grows without the journal, and no message tells of it.
        patience = _LOG_S if state is not None and not state.state.final else math.inf
        asked = self._asked
        if asked is not None and asked[:2] == (run, summary) and now < asked[2] + patience:
            return view
        try:
            asked_for = Series(runs=[run], metrics=["episode_return"], max_points=120)
            series = self._bus.request("telemetry", asked_for, timeout=_ANSWER_S).only
            rows = self._bus.request("telemetry", Logs(run=run, tail=8), timeout=_ANSWER_S).rows
        except CommandRefusedError:  # it has written nothing yet
            return view
        self._asked = (run, summary, now)
        return replace(view, series=series, log=[str(row["line"]) for row in rows])

    def _with_old(self, view: View, run: str) -> View:
        """Add a run that ended too long ago to be followed; it is asked for once."""
        if self._old is None or self._old[0].run != run:
            (state,) = self._bus.request("scheduler", Runs(runs=[run]), timeout=_ANSWER_S).runs
            found = self._bus.request("telemetry", Summaries(runs=[run]), timeout=_ANSWER_S).summaries
            self._old = (state, found[0] if found else None)
        state, summary = self._old
        summaries = {**view.summaries, run: summary} if summary else view.summaries
        return replace(view, runs=[*view.runs, state], summaries=summaries)

    def _rate(self, summaries: dict[str, RunSummary]) -> float | None:
        """Events per second over the last moments; a new attempt counts from zero."""
        now = time.monotonic()
        before = self._counted
        if before is not None and now - before[0] < _RATE_S:
            return self.view.events_per_s
        counts = {run: each.events for run, each in summaries.items()}
        self._counted = (now, counts)
        if before is None:
            return None
        grown = sum(max(0, count - before[1].get(run, count)) for run, count in counts.items())
        return grown / (now - before[0])


def _group_state(group: str, states: list[RunState], counts: dict[str, int]) -> GroupState:
    ended = all(each.state.final for each in states)
    return GroupState(
        group=group,
        total=sum(counts.values()),
        counts=counts,
        submitted_at=min(each.submitted_at for each in states),
        ended_at=max(each.ended_at or 0.0 for each in states) if ended else None,
    )
