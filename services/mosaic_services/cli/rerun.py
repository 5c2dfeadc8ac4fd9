"""`mosaic rerun`: submit a run again."""

from __future__ import annotations

from typing import Annotated

import typer

from mosaic_bus.commands import Rerun
from mosaic_services.cli.display.output import print_json, say, short
from mosaic_services.cli.lookup import find_run
from mosaic_services.cli.options import current

__all__ = ["command"]


def command(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Any unique part of the run's id, or its name.")],
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end; the exit code tells the outcome.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Submit a run that has ended again, as a new run with the same configuration.

    Of a sweep, `mosaic sweep rerun GROUP` submits all again that failed or were lost.
    """
    with current.connect() as bus:
        (again,) = bus.request("scheduler", Rerun(run=find_run(bus, run).run)).runs
        if not as_json:
            say("queued ", (short(again.run), "bold"), f"  {again.name}")
            for warning in again.warnings:
                say(("  warning: ", "yellow"), warning)
        if wait:
            from mosaic_services.cli.wait.runs import wait_for  # noqa: PLC0415 - start-up time

            raise typer.Exit(wait_for(bus, [again.run], as_json=as_json))
        if as_json:
            print_json({"runs": [again.model_dump(mode="json")]})
