"""`mosaic runs`: list runs, newest first."""

from __future__ import annotations

import textwrap
from typing import Annotated

import typer

from mosaic_bus.commands import Runs
from mosaic_bus.messages import RunState, RunStateName
from mosaic_services.cli.display.output import (
    ago,
    console,
    duration,
    fit_name,
    plain,
    print_json,
    say,
    short,
    state_text,
    table,
    why,
)
from mosaic_services.cli.errors import InputError
from mosaic_services.cli.options import current

__all__ = ["command"]

_WIDE = 110
_BRIEF = 70
# Columns of a name in a narrow terminal.
_NAME = 24
_ACTIVE = tuple(str(state) for state in RunStateName if not state.final)


def command(
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="Only runs in this state (repeat for several), or `active`."),
    ] = None,
    group: Annotated[
        str, typer.Option("--group", metavar="GROUP", help="Only runs of this group, or any unique part of it.")
    ] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=100_000, help="Maximum number of runs.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List runs, newest first."""
    states = _states(state or [])
    with current.reader() as bus:
        answer = bus.request("scheduler", Runs(states=states, group=group, limit=limit))
    if as_json:
        print_json({"total": answer.total, "runs": [run.model_dump(mode="json") for run in answer.runs]})
        return
    if not answer.runs:
        which = (f" of {group}" if group else "") + (f" in state {', '.join(state)}" if state else "")
        say(f"No runs{which} yet. Start one:  ", ("mosaic submit --worker baseline", "bold"))
        return
    # Columns with the same value in every line are omitted.
    with_group = not group and any(run.group for run in answer.runs)
    with_priority = any(run.priority for run in answer.runs)
    extra = [*(["group"] if with_group else []), *(["priority"] if with_priority else [])]
    # A narrow terminal gets a shortened reason; `mosaic show` has the whole text.
    is_narrow = console().width < _WIDE
    when = [] if is_narrow else ["submitted"]
    rows = table("run", "name", "worker", *extra, "state", *when, "took", "why", right=("took", "priority"))
    for run in answer.runs:
        rows.add_row(
            short(run.run),
            fit_name(run.name, _NAME) if is_narrow else plain(run.name),
            run.worker,
            *([run.group] if with_group else []),
            *([str(run.priority)] if with_priority else []),
            state_text(run.state),
            *([] if is_narrow else [ago(run.submitted_at)]),
            _took(run),
            textwrap.shorten(_why(run), _BRIEF, placeholder="…") if is_narrow else _why(run),
        )
    rows.columns[-1].no_wrap = False
    console().print(rows)
    if answer.total > len(answer.runs):
        say((f"{len(answer.runs)} of {answer.total}; more with --limit", "bright_black"))


def _states(given: list[str]) -> list[str]:
    states: list[str] = []
    for each in given:
        if each == "active":
            states += _ACTIVE
        elif each in {str(name) for name in RunStateName}:
            states.append(each)
        else:
            raise InputError(f"state {each!r} is unknown", "one of: active, " + ", ".join(RunStateName))
    return states


def _took(run: RunState) -> str:
    if run.started_at is None:
        return ""
    return (
        duration((run.ended_at or run.changed_at) - run.started_at)
        if run.state.final
        else ago(run.started_at).removesuffix(" ago")
    )


def _why(run: RunState) -> str:
    text = why(run) if run.state is not RunStateName.SUCCEEDED else ""
    if run.attempt > 1 or (run.attempt and run.attempts > 1 and not run.state.final):
        return f"attempt {run.attempt} of {run.attempts}" + (f": {text}" if text else "")
    return text
