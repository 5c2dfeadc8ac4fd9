"""`mosaic watch`: follow the runs live, all of them or one closely."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from mosaic_bus.commands import Cancel, Groups
from mosaic_bus.errors import BusError
from mosaic_services.cli.display.keys import Keys
from mosaic_services.cli.display.output import console, number, print_json, short
from mosaic_services.cli.errors import InputError, NoStackError
from mosaic_services.cli.lookup import find_run
from mosaic_services.cli.options import current
from mosaic_services.cli.wait.runs import Watched
from mosaic_services.cli.watch.closeup import closeup
from mosaic_services.cli.watch.feed import Feed, View
from mosaic_services.cli.watch.panel import table
from mosaic_services.progress import fraction

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from mosaic_bus import Bus

__all__ = ["command", "interrupted", "watch_runs"]

_FRAME_S = 0.25
_FIRST_ANSWER_S = 15.0


def command(
    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="A run to look at closely: any unique part of its id, or its name."),
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", metavar="GROUP", help="Only runs of this group, or any unique part of it.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print one picture and end.")] = False,
    until_done: Annotated[bool, typer.Option("--until-done", help="End when no run is active.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --once: print JSON.")] = False,
) -> None:
    """Follow the runs live. Arrows choose a run, Enter opens it, q leaves; the runs go on.

    Without a terminal it prints a line per change.
    """
    if as_json and not once:
        raise InputError("--json is one document, and watching has no end", "add --once")
    with current.connect() as bus:
        found = find_run(bus, run).run if run else None
        whole = bus.request("scheduler", Groups(group=group)).groups[0].group if group else None
        if once:
            _print_once(bus, found, whole, as_json=as_json)
        else:
            watch_runs(bus, found, group=whole, until_done=until_done)


def watch_runs(bus: Bus, run: str | None, *, until_done: bool, group: str | None = None) -> None:
    """Watch until the user leaves, or until nothing is active (or nobody answers who could tell)."""
    feed = Feed(bus, run, group)
    try:
        if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
            _Screen(bus, feed, pinned=run is not None).show(until_done=until_done)
        else:
            _print_changes(feed, until_done=until_done)
    except KeyboardInterrupt:
        pass
    finally:
        feed.close()


def _print_once(bus: Bus, run: str | None, group: str | None, *, as_json: bool) -> None:
    feed = Feed(bus, run, group)
    try:
        if not feed.fresh.wait(_FIRST_ANSWER_S) or not feed.view.loaded:
            raise NoStackError(feed.view.trouble or "the stack does not answer", "see: mosaic status")
        if as_json:
            print_json(_document(feed.view, run))
        else:
            console().print(_picture(feed.view, run, 40, None))
    finally:
        feed.close()


def _document(view: View, run: str | None) -> dict[str, Any]:
    """What the picture shows, as data."""
    shown = [each for each in (*view.active, *view.final) if run in (None, each.run)]
    rows = []
    for each in shown:
        summary, usage = view.summaries.get(each.run), view.usage(each.run)
        rows.append(
            {
                **each.model_dump(mode="json"),
                "summary": summary.model_dump(mode="json") if summary else None,
                "usage": usage.model_dump(mode="json") if usage and not each.state.final else None,
            }
        )
    return {
        "runs": rows,
        "hosts": [each.model_dump(mode="json") for each in view.hosts],
        "done": view.done,
        "trouble": view.trouble,
        **({"group": view.group.model_dump(mode="json")} if view.group else {}),
        **({"log": view.log} if run else {}),
    }


def _picture(view: View, run: str | None, height: int, selected: str | None) -> RenderableType:
    width, now = console().width, time.time()
    return closeup(view, run, width, height, now) if run else table(view, width, height, now, selected)


class Endings:
    """Finds out when nothing more will happen, by the same rule as `mosaic submit --wait`."""

    def __init__(self) -> None:
        self._watched: dict[str, Watched] = {}

    def reached(self, feed: Feed) -> bool:
        """Whether it is over now; raises `NoAnswerError` if the stack is gone."""
        if feed.gone is not None:
            raise feed.gone
        return self.is_over(feed.view, feed.focus, time.monotonic())

    def is_over(self, view: View, run: str | None, now: float) -> bool:
        """Whether the run, or all runs, are final and their telemetry is stored, or will never be."""
        if not view.loaded:
            return False
        wanted = [each for each in view.runs if run in (None, each.run)]
        watched = [self._watched.setdefault(each.run, Watched(each.run)) for each in wanted]
        for each, state in zip(watched, wanted, strict=True):
            each.update(state, view.summaries.get(state.run), now)
            if view.trouble:
                each.heard_nothing(now)
        return bool(watched or run is None) and all(each.done(now) for each in watched)


@contextlib.contextmanager
def interrupted() -> Iterator[threading.Event]:
    """An event that Ctrl-C sets. An exception could come in the middle of anything, and be swallowed there."""
    event = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: event.set())
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)


class _Screen:
    """The live picture and the keys that steer it."""

    def __init__(self, bus: Bus, feed: Feed, *, pinned: bool) -> None:
        self._bus = bus
        self._feed = feed
        self._pinned = pinned
        self._selected: str | None = None
        self._asked_to_cancel: str | None = None
        self._note = ""
        self._endings = Endings()

    def show(self, *, until_done: bool) -> None:
        def frame() -> RenderableType:
            picture = _picture(self._feed.view, self._feed.focus, console().height - 2, self._selected)
            return Group(picture, Text(), Text(self._hints(), style="bright_black"))

        live = Live(frame(), console=console(), screen=True, auto_refresh=False)
        with interrupted() as left, Keys() as keys, live:
            while not (until_done and self._endings.reached(self._feed)):
                if not self._obey(keys.next(_FRAME_S)) or left.is_set():
                    break
                live.update(frame(), refresh=True)
        # The alternate screen is gone now: leave the last picture behind.
        console().print(_picture(self._feed.view, self._feed.focus, console().height - 2, None))

    def _hints(self) -> str:
        if self._asked_to_cancel:
            return f"cancel {short(self._asked_to_cancel)}?  [y] yes   any other key: no"
        back = "" if self._pinned or not self._feed.focus else "[esc] back   "
        choose = "" if self._feed.focus else "[↑↓] choose   [enter] open run   "
        return f"{choose}{back}[c] cancel   [q] quit   {self._note}"

    def _obey(self, key: str | None) -> bool:
        """Do what a key says; False to leave."""
        if key is None:
            return True
        if self._asked_to_cancel:
            run, self._asked_to_cancel = self._asked_to_cancel, None
            if key == "y":
                self._cancel(run)
            return True
        self._note = ""
        runs = [each.run for each in (*self._feed.view.active, *self._feed.view.final)]
        match key:
            case "q":
                return False
            case "escape":
                if self._pinned:
                    return False
                self._feed.look_at(None)
            case "up" | "down" if runs and not self._feed.focus:
                at = runs.index(self._selected) if self._selected in runs else (-1 if key == "down" else len(runs))
                self._selected = runs[max(0, min(len(runs) - 1, at + (1 if key == "down" else -1)))]
            case "enter" if runs:
                self._feed.look_at(self._selected or runs[0])
            case "c" if self._feed.focus or self._selected in runs:  # never one that is not on the screen
                self._asked_to_cancel = self._feed.focus or self._selected
        return True

    def _cancel(self, run: str) -> None:
        try:
            self._bus.request("scheduler", Cancel(run=run), timeout=3.0)
            self._note = f"cancelling {short(run)}"
        except BusError as error:
            self._note = str(error)


def _print_changes(feed: Feed, *, until_done: bool) -> None:
    """Write one line whenever a run changes its state or has done another tenth."""
    told: dict[str, tuple[str, int]] = {}
    trouble = ""
    endings = Endings()
    while True:
        feed.fresh.wait()
        feed.fresh.clear()
        view = feed.view
        if view.trouble != trouble:
            trouble = view.trouble
            print(trouble or "the stack answers again", file=sys.stderr, flush=True)
        for run in (*view.final, *view.active):
            if feed.focus not in (None, run.run) or (run.state.final and run.run not in told and not feed.focus):
                continue
            summary = view.summaries.get(run.run)
            done = fraction(summary) if summary else None
            news = (str(run.state), int((done or 0) * 10))
            if told.get(run.run) == news:
                continue
            told[run.run] = news
            line = f"{short(run.run)}  {run.name}  {run.state}"
            if summary is not None and summary.events:
                percent = f"  {done:.0%}" if done is not None else ""
                mean = f"  return {number(summary.return_mean)}" if summary.return_mean is not None else ""
                line += f"{percent}  step {summary.step:,}  episode {summary.episodes:,}{mean}"
            elif run.detail or run.reason:
                line += f"  {run.detail or run.reason}"
            print(line, flush=True)
        if until_done and endings.reached(feed):
            return
