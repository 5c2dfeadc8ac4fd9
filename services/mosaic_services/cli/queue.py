"""`mosaic queue`: waiting runs; pause and resume."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mosaic_bus.commands import Hosts, PauseQueue, Runs
from mosaic_bus.messages import RunState, RunStateName
from mosaic_services.cli.display.output import ago, console, plain, print_json, say, short, table
from mosaic_services.cli.options import current, with_settings

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["app", "in_order"]

app = typer.Typer(no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})

_JSON = Annotated[bool, typer.Option("--json", help="Print JSON.")]
_REASON = Annotated[str, typer.Option("--reason", help="Shown for runs that wait because of it.")]


def _command(name: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    def add(function: Callable[..., None]) -> Callable[..., None]:
        app.command(name)(with_settings(function))
        return function

    return add


def in_order(newest_first: list[RunState]) -> list[RunState]:
    """Sort runs by priority, then by submission."""
    runs = newest_first[::-1]
    runs.sort(key=lambda run: -run.priority)
    return runs


@_command("show")
def show(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=100_000, help="Maximum number of runs.")] = 20,
    as_json: _JSON = False,
) -> None:
    """Show waiting runs in the order in which they will start, and what each waits for."""
    with current.connect() as bus:
        paused = bus.request("scheduler", Hosts()).paused
        found = bus.request("scheduler", Runs(states=[str(RunStateName.QUEUED)], limit=100_000), timeout=20.0)
    runs = in_order(found.runs)[:limit]
    if as_json:
        print_json({"paused": paused, "total": found.total, "runs": [each.model_dump(mode="json") for each in runs]})
        return
    if paused is not None:
        say(("paused", "bold yellow"), f": {paused}  (mosaic queue resume)")
    if not runs:
        say("Nothing waits.")
        return
    rows = table("", "run", "name", "group", "priority", "waits since", "for", right=("", "priority"))
    rows.columns[-1].no_wrap = False
    for number, run in enumerate(runs, 1):
        since = ago(run.submitted_at).removesuffix(" ago")
        why = plain(run.detail or run.reason)
        rows.add_row(str(number), short(run.run), plain(run.name), run.group, str(run.priority), since, why)
    console().print(rows)
    if found.total > len(runs):
        say((f"{len(runs)} of {found.total:,}; more with --limit", "bright_black"))


@_command("pause")
def pause(reason: _REASON = "by a user", as_json: _JSON = False) -> None:
    """Place no more runs until `mosaic queue resume`. Running runs continue."""
    _set(reason, paused=True, as_json=as_json)


@_command("resume")
def resume(as_json: _JSON = False) -> None:
    """Place runs again."""
    _set("by a user", paused=False, as_json=as_json)


def _set(reason: str, *, paused: bool, as_json: bool) -> None:
    with current.connect() as bus:
        note = bus.request("scheduler", PauseQueue(paused=paused, reason=reason)).note
    if as_json:
        print_json({"paused": paused, "note": note})
    else:
        say(note)
