"""`mosaic delete`: delete runs that have ended, with their files and events."""

from __future__ import annotations

from typing import Annotated

import typer

from mosaic_bus.commands import Delete
from mosaic_services.cli.display.deleted import print_deleted
from mosaic_services.cli.options import current

__all__ = ["command"]

# Large runs take a while to remove.
ANSWER_S = 600.0


def command(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN…", help="Any unique part of a run's id, or its name.", show_default=False),
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    without_host: Annotated[
        bool, typer.Option("--without-host", help="Also if a host with files of the run does not answer.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Delete runs that have ended, with their files, events and logs. It cannot be undone.

    A run that another one waits for is kept. `mosaic prune` deletes all that are old.
    """
    with current.connect() as bus:
        asked = Delete(runs=runs, dry_run=dry_run, without_host=without_host)
        answer = bus.request("scheduler", asked, timeout=ANSWER_S)
    print_deleted(answer, dry_run=dry_run, as_json=as_json)
