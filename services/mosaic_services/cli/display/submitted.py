"""What commands that submit runs say and do afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from mosaic_services.cli.display.output import print_json, say, short

if TYPE_CHECKING:
    from mosaic_bus import Bus
    from mosaic_bus.commands import Submitted

__all__ = ["finish", "print_queued"]


def print_queued(submitted: list[Submitted]) -> None:
    """Name the new runs, with their warnings."""
    for each in submitted:
        say("queued ", (short(each.run), "bold"), f"  {each.name}")
        for warning in each.warnings:
            say(("  warning: ", "yellow"), warning)


def finish(bus: Bus, submitted: list[Submitted], *, wait: bool, as_json: bool) -> None:
    """Print the new runs; wait for them if asked, and exit with their outcome."""
    if not as_json:
        print_queued(submitted)
    if wait:
        from mosaic_services.cli.wait.interruption import runs_go_on  # noqa: PLC0415 - start-up time
        from mosaic_services.cli.wait.runs import wait_for  # noqa: PLC0415 - start-up time

        runs = [each.run for each in submitted]
        with runs_go_on(f"cancel {' '.join(map(short, runs))}", "watch"):
            raise typer.Exit(wait_for(bus, runs, as_json=as_json))
    if as_json:
        print_json({"runs": [each.model_dump(mode="json") for each in submitted]})
