"""Prints what `mosaic delete` and `mosaic prune` have deleted, or would delete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mosaic_services.cli.display.output import console, print_json, say, short, size, table
from mosaic_services.cli.errors import CliError

if TYPE_CHECKING:
    from mosaic_bus.commands import DeleteResult

__all__ = ["print_deleted", "require_none_kept"]


def print_deleted(answer: DeleteResult, *, dry_run: bool, as_json: bool) -> None:
    """Print the runs with their sizes, and why others were kept; fail if some were."""
    if as_json:
        print_json(answer.model_dump(mode="json"))
    else:
        if answer.deleted:
            rows = table("run", "name", "state", "disk", right=("disk",))
            for each in answer.deleted:
                rows.add_row(short(each.run), each.name, each.state, size(each.bytes / 2**20))
            console().print(rows)
        total = size(sum(each.bytes for each in answer.deleted) / 2**20)
        say(f"{'would delete' if dry_run else 'deleted'} {len(answer.deleted)} runs, {total}")
    require_none_kept(answer)


def require_none_kept(answer: DeleteResult) -> None:
    """Fail with the reasons why runs were kept."""
    if answer.kept:
        said = "\n".join(f"{each.name} ({short(each.run)}): {each.reason}" for each in answer.kept)
        raise CliError(f"{len(answer.kept)} runs are kept", said, code=2)
