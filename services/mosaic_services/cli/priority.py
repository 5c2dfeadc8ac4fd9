"""`mosaic priority`: change the priority of waiting runs."""

from __future__ import annotations

from typing import Annotated

import typer

from mosaic_bus.commands import Prioritise
from mosaic_services.cli.display.output import print_json, say
from mosaic_services.cli.errors import InputError
from mosaic_services.cli.lookup import find_run
from mosaic_services.cli.options import current

__all__ = ["command"]

_LIMIT = 1000


def command(
    words: Annotated[
        list[str],
        typer.Argument(metavar="[RUN] N", help="A run, unless a group is given, and its new priority: higher first."),
    ],
    group: Annotated[
        str, typer.Option("--group", metavar="GROUP", help="All waiting runs of this group, or any unique part of it.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Change the priority of a waiting run, or of all waiting runs of a group. Running runs are not affected.

    mosaic priority 4K7QXB 10

    mosaic priority --group lr-search-9zd1ma -- -5
    """
    *runs, text = words
    if len(runs) != (0 if group else 1):
        raise InputError("give a run or a group, and a priority", "mosaic priority RUN N   or   --group GROUP N")
    try:
        value = int(text)
    except ValueError:
        raise InputError(f"priority {text!r} is not a whole number", "for example: mosaic priority RUN 10") from None
    if abs(value) > _LIMIT:
        raise InputError(f"priority {value} is not in the range -{_LIMIT} to {_LIMIT}")
    with current.connect() as bus:
        run = find_run(bus, runs[0], active=True).run if runs else ""
        command = Prioritise(run=run, group=group, priority=value)
        note = bus.request("scheduler", command, timeout=60.0).note
    if as_json:
        print_json({"priority": value, "note": note})
    else:
        say(note)
