"""`mosaic unpause`: let a paused training go on."""

from __future__ import annotations

from typing import Annotated

import typer

from mosaic_services.cli.pause import tell_run

__all__ = ["command"]


def command(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Any unique part of the run's id, or its name.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Let a training go on that `mosaic pause` has paused."""
    tell_run(run, paused=False, as_json=as_json)
