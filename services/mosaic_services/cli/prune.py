"""`mosaic prune`: delete all runs that ended long ago."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from mosaic_bus.commands import Delete
from mosaic_services.cli.delete import ANSWER_S
from mosaic_services.cli.display.deleted import print_deleted
from mosaic_services.cli.errors import InputError
from mosaic_services.cli.options import current

__all__ = ["command"]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def command(
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help="Such as 12h, 30d or 8w, counted from their end.")
    ],
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help="Only runs that ended so; repeatable.", show_default=False),
    ] = None,
    group: Annotated[str, typer.Option("--group", metavar="GROUP", help="Only runs of this group.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Delete all runs that ended long ago, with their files, events and logs. It cannot be undone.

    mosaic prune --older-than 30d --state failed --dry-run
    """
    found = re.fullmatch(r"(\d{1,9})([smhdw])", older_than.strip())
    if found is None:
        raise InputError(f"{older_than!r} is not an age", "for example: --older-than 30d (also s, m, h, w)")
    seconds = int(found[1]) * _UNITS[found[2]]
    with current.connect() as bus:
        asked = Delete(older_than_s=float(seconds), states=state or [], group=group, dry_run=dry_run)
        answer = bus.request("scheduler", asked, timeout=ANSWER_S)
    print_deleted(answer, dry_run=dry_run, as_json=as_json)
