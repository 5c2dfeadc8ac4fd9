"""`mosaic runs`: list runs, newest first."""

from __future__ import annotations

from typing import Annotated

import typer

from mosaic_bus.commands import Runs
from mosaic_bus.messages import RunState, RunStateName
from mosaic_services.cli.errors import InputError
from mosaic_services.cli.output import ago, console, duration, plain, print_json, say, short, state_text, table
from mosaic_services.cli.settings import current

__all__ = ["command"]

_ACTIVE = tuple(str(state) for state in RunStateName if not state.final)


def command(
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="Only runs in this state (repeat for several), or `active`."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=100_000, help="At most so many.")] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List runs, newest first."""
    states = _states(state or [])
    with current.connect() as bus:
        answer = bus.request("scheduler", Runs(states=states, limit=limit))
    if as_json:
        print_json({"total": answer.total, "runs": [run.model_dump(mode="json") for run in answer.runs]})
        return
    if not answer.runs:
        which = f" in state {', '.join(state)}" if state else ""
        say(f"No runs{which} yet. Start one:  ", ("mosaic submit --worker baseline", "bold"))
        return
    rows = table("run", "name", "worker", "state", "submitted", "took", "why", right=("took",))
    for run in answer.runs:
        rows.add_row(
            short(run.run),
            plain(run.name),
            run.worker,
            state_text(run.state),
            ago(run.submitted_at),
            _took(run),
            _why(run),
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
    return plain(run.detail or run.reason) if run.state is not RunStateName.SUCCEEDED else ""
