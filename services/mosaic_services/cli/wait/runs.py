"""Waits for runs, with a line of progress each, until they are final and all telemetry is stored."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.live import Live
from rich.table import Table

from mosaic_bus.client.live import is_settled
from mosaic_bus.commands import Logs
from mosaic_bus.errors import CommandRefusedError, NoAnswerError
from mosaic_bus.messages import RunState, RunStateName, RunSummary
from mosaic_services.cli.display.output import console, duration, number, print_json, say, short, state_text
from mosaic_services.cli.errors import FAILED, STOPPED
from mosaic_services.cli.wait.silence import require_answers
from mosaic_services.progress import fraction

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from mosaic_bus import Bus
    from mosaic_bus.client import PlainFollower

__all__ = ["Watched", "exit_code", "outcome_lines", "wait_for", "wait_until_done"]

# Pause after a change, so that several in quick succession are shown together.
_PACE_S = 0.1
_STALLED_LOOK_S = 1.0
# A final run whose telemetry has not changed for this long is reported as it is.
_STALLED_S = 15.0


@dataclass
class Watched:
    """A run that is waited for: its latest state and summary, and when they last changed."""

    run: str
    state: RunState | None = None
    summary: RunSummary | None = None
    moved_at: float = 0.0
    told: str = ""

    def update(self, state: RunState, summary: RunSummary | None, now: float) -> None:
        """Update state and summary; `now` is monotonic."""
        if (state, summary) != (self.state, self.summary) or not self.moved_at:
            self.moved_at = now
        self.state, self.summary = state, summary

    def heard_nothing(self, now: float) -> None:
        """Note that a service did not answer: an outage does not count as a stall."""
        self.moved_at = now

    def done(self, now: float) -> bool:
        """Whether the wait is over: the run is final, and its telemetry is complete or has stalled."""
        if self.state is None or not self.state.state.final:
            return False
        return is_settled(self.state, self.summary) or now - self.moved_at > _STALLED_S

    @property
    def complete(self) -> bool:
        """Whether all its telemetry is stored."""
        return self.summary is not None and self.summary.complete


def wait_for(bus: Bus, runs: list[str], *, as_json: bool) -> int:
    """Wait until all runs are final; print how each ended; return the exit code."""
    watched = [Watched(run) for run in runs]
    with bus.follow(runs=runs, hosts=False) as view:
        if as_json:
            wait_until_done(view, watched, lambda: None)
        elif sys.stdout.isatty():
            _show_live(view, watched)
        else:
            wait_until_done(view, watched, lambda: _tell_changes(watched))
    if as_json:
        print_json({"runs": [_document(each) for each in watched]})
    else:
        for each in watched:
            _print_outcome(bus, each)
    return exit_code([each.state.state for each in watched if each.state])


def _show_live(view: PlainFollower, watched: list[Watched]) -> None:
    def frame() -> Table:
        grid = Table.grid(padding=(0, 2))
        for each in watched:
            if each.state is not None:
                grid.add_row(short(each.run), state_text(each.state.state), _progress(each))
        return grid

    with Live(frame(), console=console(), transient=True, auto_refresh=False) as live:
        wait_until_done(view, watched, lambda: live.update(frame(), refresh=True))


def _tell_changes(watched: list[Watched]) -> None:
    for each in watched:
        if each.state is None or each.state.state.final:  # `_print_outcome` reports the end
            continue
        line = f"{each.state.state}: {each.state.reason}"
        if line != each.told:
            each.told = line
            print(f"{short(each.run)}  {line}", flush=True)


def _progress(each: Watched) -> str:
    state, summary = each.state, each.summary
    if state is None or summary is None or state.state in {RunStateName.QUEUED, RunStateName.PREPARING}:
        return "" if state is None else state.detail or state.reason
    parts = []
    if (done := fraction(summary)) is not None:
        filled = int(done * 20)
        parts.append("█" * filled + "░" * (20 - filled) + f" {done:4.0%}")
    parts.append(f"step {summary.step:,}  episode {summary.episodes:,}")
    if summary.steps_per_s:
        parts.append(f"{summary.steps_per_s:,.0f} steps/s")
    if summary.return_mean is not None:
        parts.append(f"return {number(summary.return_mean)}")
    return "  ".join(parts)


def wait_until_done(view: PlainFollower, watched: Collection[Watched], changed: Callable[[], None]) -> None:
    """Wait until every run is done; call `changed` after each change."""
    while True:
        silent = view.silent
        require_answers(silent)
        runs, summaries, now = view.runs, view.summaries, time.monotonic()
        for each in watched:
            if state := runs.get(each.run):
                each.update(state, summaries.get(each.run), now)
            if silent:
                each.heard_nothing(now)
        changed()
        if all(each.done(now) for each in watched):
            return
        view.wait(_STALLED_LOOK_S)
        time.sleep(_PACE_S)


def exit_code(states: list[RunStateName]) -> int:
    """The exit code for runs in these states: failed outranks cancelled or lost, which outrank succeeded."""
    if RunStateName.FAILED in states:
        return FAILED
    return STOPPED if {RunStateName.CANCELLED, RunStateName.LOST} & set(states) else 0


def _print_outcome(bus: Bus, each: Watched) -> None:
    state, summary = each.state, each.summary
    if state is None:
        return
    took = f" in {duration(state.ended_at - state.started_at)}" if state.ended_at and state.started_at else ""
    line = state_text(state.state)
    say((short(state.run), "bold"), " ", line, f" {state.name}{took}", end="")
    if summary is not None and summary.events:
        mean = (
            f", return {number(summary.return_mean)} ± {number(summary.return_std)} (last 100 episodes)"
            if summary.return_mean is not None
            else ""
        )
        console().print(
            f": {summary.episodes:,} episodes, {summary.step:,} steps, {summary.events:,} events{mean}", end=""
        )
    console().print()
    if not each.complete and state.attempt:
        say(("  not all of its telemetry is stored yet", "yellow"), f"  (mosaic show {short(state.run)})")
    if state.state is not RunStateName.SUCCEEDED:
        for text in outcome_lines(bus, state):
            say(f"  {text}")


def outcome_lines(bus: Bus, state: RunState) -> list[str]:
    """Explain why a run did not succeed, with the end of its log."""
    category = f"{state.category}: " if state.category else ""
    lines = [f"{category}{state.reason}"]
    if state.state is RunStateName.FAILED and state.attempt:
        try:
            rows = bus.request("telemetry", Logs(run=state.run, tail=5), timeout=2.0).rows
            lines += [f"  | {row['line']}" for row in rows if str(row.get("line", "")).strip()]
        except (CommandRefusedError, NoAnswerError):
            pass
        lines.append(f"see: mosaic logs {short(state.run)}   mosaic show {short(state.run)}")
    return lines


def _document(each: Watched) -> dict[str, object]:
    return {
        **(each.state.model_dump(mode="json") if each.state else {"run": each.run}),
        "complete": each.complete,
        "summary": each.summary.model_dump(mode="json") if each.summary else None,
    }
