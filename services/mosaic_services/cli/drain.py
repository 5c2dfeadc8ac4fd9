"""`mosaic drain`: place no more runs on a host."""

from __future__ import annotations

from typing import Annotated

import typer

from mosaic_bus.commands import Drain
from mosaic_services.cli.display.output import print_json, say
from mosaic_services.cli.options import current

__all__ = ["command"]


def command(
    host: Annotated[str, typer.Argument(metavar="HOST", help="Name of a host (mosaic hosts).")],
    undo: Annotated[bool, typer.Option("--undo", help="Start runs there again.")] = False,
    reason: Annotated[str, typer.Option("--reason", help="Shown for runs that wait because of it.")] = "by a user",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Place no more runs on a host, for example before it is switched off. Its running runs continue."""
    with current.connect() as bus:
        note = bus.request("scheduler", Drain(host=host, drained=not undo, reason=reason)).note
    if as_json:
        print_json({"host": host, "drained": not undo, "note": note})
    else:
        say(note)
