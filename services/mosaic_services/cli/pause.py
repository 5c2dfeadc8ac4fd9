"""`mosaic pause`: let a running training pause, if its worker can; `mosaic unpause` is the other half."""

from __future__ import annotations

from typing import Annotated

import typer

from mosaic_bus import topics
from mosaic_bus.commands import PauseRun
from mosaic_services.cli.display.output import print_json, short
from mosaic_services.cli.errors import InputError
from mosaic_services.cli.lookup import find_run
from mosaic_services.cli.options import current

__all__ = ["command", "tell_run"]


def command(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Any unique part of the run's id, or its name.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Pause a running training at the end of its iteration, if its worker can. It keeps its CPUs, memory and GPUs.

    mosaic pause rllib-spread

    mosaic unpause rllib-spread
    """
    tell_run(run, paused=True, as_json=as_json)


def tell_run(query: str, *, paused: bool, as_json: bool) -> None:
    """Tell the worker of a run to pause or to go on."""
    with current.connect() as bus:
        run = find_run(bus, query, active=True)
        if run.host is None:
            raise InputError(f"run {short(run.run)} is {run.state}: only a training that runs can be paused")
        command = PauseRun(run=run.run, attempt=run.attempt, paused=paused)
        bus.request(topics.supervisor(run.host), command)
    if as_json:
        print_json({"run": run.run, "name": run.name, "paused": paused})
    else:
        print(f"{short(run.run)}  {'pauses at the end of its iteration' if paused else 'goes on'}")
