"""`mosaic watch`: a live view of all runs or of one."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mosaic_bus.commands import Groups
from mosaic_services.cli.display.output import console, number, print_json, short, why
from mosaic_services.cli.errors import InputError, NoStackError
from mosaic_services.cli.lookup import find_run
from mosaic_services.cli.options import current
from mosaic_services.cli.watch.endings import Endings
from mosaic_services.cli.watch.feed import Feed, View
from mosaic_services.cli.watch.screen import Screen, picture
from mosaic_services.progress import fraction

if TYPE_CHECKING:
    from mosaic_bus import Bus

__all__ = ["command", "watch_runs"]

_FIRST_ANSWER_S = 15.0


def command(
    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="A run to open: any unique part of its id, or its name."),
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", metavar="GROUP", help="Only runs of this group, or any unique part of it.")
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Print the current state and exit.")] = False,
    until_done: Annotated[bool, typer.Option("--until-done", help="Exit when no run is active.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --once: print JSON.")] = False,
) -> None:
    """Watch runs live. Arrows choose a run, Enter opens it, ? lists the keys, q quits; the runs go on.

    Without a terminal it prints a line per change.
    """
    if as_json and not once:
        raise InputError("--json prints one document, and needs --once", "add --once")
    with current.connect() as bus:
        found = find_run(bus, run).run if run else None
        whole = bus.request("scheduler", Groups(group=group)).groups[0].group if group else None
        if once:
            _print_once(bus, found, whole, as_json=as_json)
        else:
            watch_runs(bus, found, group=whole, until_done=until_done)


def watch_runs(bus: Bus, run: str | None, *, until_done: bool, group: str | None = None) -> None:
    """Watch until the user leaves; with `until_done`, until no run is active or the stack is gone."""
    feed = Feed(bus, run, group)
    try:
        if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
            Screen(bus, feed, pinned=run is not None).show(until_done=until_done)
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
            console().print(picture(feed.view, run, 40, None))
    finally:
        feed.close()


def _document(view: View, run: str | None) -> dict[str, Any]:
    """What the screen shows, as data."""
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


def _print_changes(feed: Feed, *, until_done: bool) -> None:
    """Print a line whenever a run changes its state or completes another tenth."""
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
            elif text := why(run):
                line += f"  {text}"
            print(line, flush=True)
        if until_done and endings.reached(feed):
            return
