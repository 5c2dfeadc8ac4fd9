"""`mosaic cancel`: stop runs, or remove them from the queue."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from mosaic_bus.commands import Cancel
from mosaic_bus.errors import CommandRefusedError
from mosaic_services.cli.display.output import print_json, short
from mosaic_services.cli.errors import CliError, InputError
from mosaic_services.cli.lookup import find_run
from mosaic_services.cli.options import current

__all__ = ["command"]


def command(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN", help="Any unique part of a run's id, or its name.", show_default=False),
    ] = None,
    group: Annotated[
        str | None, typer.Option("--group", metavar="GROUP", help="All runs of this group, or any unique part of it.")
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Stored with the run.")] = "cancelled by user",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Stop running runs and remove waiting ones from the queue. If one is refused, the others are still stopped."""
    if (group is None) == (not runs):
        raise InputError("give either runs or a group", "mosaic cancel RUN   or   mosaic cancel --group GROUP")
    if group is not None:
        from mosaic_services.cli.sweep.command import cancel  # noqa: PLC0415 - start-up time

        cancel(group, reason, as_json=as_json)
        return
    cancelled: list[dict[str, Any]] = []
    refused: list[CommandRefusedError] = []
    with current.connect() as bus:
        for each in runs or []:
            try:
                run = find_run(bus, each, active=True)
                note = bus.request("scheduler", Cancel(run=run.run, reason=reason)).note
            except CommandRefusedError as error:
                refused.append(error)
                continue
            cancelled.append({"run": run.run, "name": run.name, "note": note})
            if not as_json:
                print(f"{short(run.run)}  {note}", flush=True)
    if as_json:
        print_json({"cancelled": cancelled, "refused": [{"code": one.code, "message": one.message} for one in refused]})
    if len(refused) == 1:
        raise refused[0]
    if refused:
        raise CliError(
            f"{len(refused)} of {len(runs or [])} could not be cancelled", "\n".join(map(str, refused)), code=2
        )
