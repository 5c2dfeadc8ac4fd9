"""The live screen of `mosaic watch`, and its keys."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Group
from rich.live import Live
from rich.text import Text

from mosaic_bus.commands import Cancel, Logs, Why
from mosaic_bus.errors import BusError
from mosaic_services.cli.display.keys import Keys
from mosaic_services.cli.display.output import console, plain, short
from mosaic_services.cli.wait.interruption import interrupted
from mosaic_services.cli.watch.closeup import closeup
from mosaic_services.cli.watch.endings import Endings
from mosaic_services.cli.watch.panel import table

if TYPE_CHECKING:
    from rich.console import RenderableType

    from mosaic_bus import Bus
    from mosaic_services.cli.watch.feed import Feed, View

__all__ = ["Screen", "picture"]

_FRAME_S = 0.25
# Somebody waits for the key to do something.
_ANSWER_S = 3.0

_HELP = """\
↑ ↓ or k j    choose a run
Enter         open it: curve, figures, log
l             its log
w             why it waits, runs, stopped or failed
c             cancel it, after a question
Esc           back
?             this page
q or Ctrl-C   quit; the runs go on"""


def picture(view: View, run: str | None, height: int, selected: str | None) -> RenderableType:
    """All runs, or one in large."""
    width, now = console().width, time.time()
    return closeup(view, run, width, height, now) if run else table(view, width, height, now, selected)


class Screen:
    """Shows the runs, or a page of text about one, until the user leaves."""

    def __init__(self, bus: Bus, feed: Feed, *, pinned: bool) -> None:
        self._bus = bus
        self._feed = feed
        self._pinned = pinned
        self._selected: str | None = None
        self._asked_to_cancel: str | None = None
        # A page of text in front of the runs: its key, and what it says.
        self._page: tuple[str, str] | None = None
        self._note = ""
        self._endings = Endings()

    def show(self, *, until_done: bool) -> None:
        """Draw until the user leaves, or until nothing more will happen."""
        live = Live(self._frame(), console=console(), screen=True, auto_refresh=False)
        with interrupted() as left, Keys() as keys, live:
            while not (until_done and self._endings.reached(self._feed)):
                if not self._obey(keys.next(_FRAME_S)) or left.is_set():
                    break
                live.update(self._frame(), refresh=True)
        # The alternate screen is gone: leave the last picture in the terminal.
        console().print(picture(self._feed.view, self._feed.focus, console().height - 2, None))

    def _frame(self) -> RenderableType:
        height = console().height - 2
        shown: RenderableType
        if self._page is not None:
            lines = self._page[1].splitlines()[-height:]
            shown = Text("\n".join(lines), no_wrap=True, overflow="ellipsis")
        else:
            shown = picture(self._feed.view, self._feed.focus, height, self._selected)
        return Group(shown, Text(), Text(self._hints(), style="bright_black"))

    @property
    def _chosen(self) -> str | None:
        """The run that keys are about: the open one or the selected one; never one that is not on the screen."""
        selected = self._selected if self._feed.view.run(self._selected or "") else None
        return self._feed.focus or selected

    @property
    def _can_cancel(self) -> bool:
        run = self._feed.view.run(self._chosen or "")
        return run is not None and not run.state.final

    def _hints(self) -> str:
        if self._asked_to_cancel:
            return f"cancel {short(self._asked_to_cancel)}?  [y] yes   any other key: no"
        if self._page is not None:
            return "[esc] back   [q] quit"
        hints = [
            *([] if self._feed.focus else ["[↑↓] choose", "[enter] open"]),
            *([] if self._pinned or not self._feed.focus else ["[esc] back"]),
            *(["[l] logs", "[w] why"] if self._chosen else []),
            *(["[c] cancel"] if self._can_cancel else []),
            "[?] help",
            "[q] quit",
            self._note,
        ]
        return "  ".join(filter(None, hints))

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
        if key == "q":
            return False
        if self._page is not None and key in {"escape", self._page[0]}:
            self._page = None
            return True
        runs = [each.run for each in (*self._feed.view.active, *self._feed.view.final)]
        match key:
            case "escape":
                if self._pinned:
                    return False
                self._feed.look_at(None)
            case "up" | "down" if runs and not self._feed.focus:
                at = runs.index(self._selected) if self._selected in runs else (-1 if key == "down" else len(runs))
                self._selected = runs[max(0, min(len(runs) - 1, at + (1 if key == "down" else -1)))]
            case "enter" if runs:
                self._page = None
                self._feed.look_at(self._selected or runs[0])
            case "c" if self._chosen and self._can_cancel:
                self._asked_to_cancel = self._chosen
            case "l" | "w" if self._chosen:
                self._open_page(key, self._chosen)
            case "?":
                self._page = ("?", _HELP)
        return True

    def _open_page(self, key: str, run: str) -> None:
        try:
            text = self._log(run) if key == "l" else self._why(run)
        except BusError as error:
            self._note = str(error)
        else:
            self._page = (key, f"{short(run)}\n\n{text}")

    def _log(self, run: str) -> str:
        rows = self._bus.request("telemetry", Logs(run=run, tail=console().height), timeout=_ANSWER_S).rows
        return "\n".join(plain(str(row.get("line", ""))) for row in rows) or "the log is empty"

    def _why(self, run: str) -> str:
        answer = self._bus.request("scheduler", Why(run=run), timeout=_ANSWER_S)
        return "\n".join([plain(answer.answer), *(f"  · {plain(fact)}" for fact in answer.facts)])

    def _cancel(self, run: str) -> None:
        try:
            self._bus.request("scheduler", Cancel(run=run), timeout=_ANSWER_S)
            self._note = f"cancelling {short(run)}"
        except BusError as error:
            self._note = str(error)
