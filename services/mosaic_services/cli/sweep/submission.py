"""Submits many runs as one group, all or none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mosaic_bus.commands import CancelGroup, NewRun, SubmitMany
from mosaic_bus.errors import BusError, CommandRefusedError
from mosaic_bus.refusals import RefusalCode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mosaic_bus import Bus
    from mosaic_bus.messages import RunSpec

__all__ = ["chunks", "submit_all"]

MOST_RUNS = 10_000
# Well below the limit of a message, 64 MiB.
MOST_BYTES = 16_000_000
_ANSWER_S = 120.0


def chunks(specs: list[RunSpec], most_runs: int = MOST_RUNS, most_bytes: int = MOST_BYTES) -> Iterator[list[RunSpec]]:
    """Split a list into pieces that fit one command."""
    piece: list[RunSpec] = []
    size = 0
    for spec in specs:
        length = len(spec.model_dump_json())
        if piece and (len(piece) == most_runs or size + length > most_bytes):
            yield piece
            piece, size = [], 0
        piece.append(spec)
        size += length
    if piece:
        yield piece


def submit_all(bus: Bus, group: str, specs: list[RunSpec]) -> list[str]:
    """Submit runs; if a later piece is refused, cancel the earlier ones. Returns the distinct warnings."""
    warnings: dict[str, None] = {}
    submitted = 0
    for piece in chunks(specs):
        try:
            answer = bus.request("scheduler", SubmitMany(runs=[NewRun(spec=each) for each in piece]), timeout=_ANSWER_S)
        except BusError as error:
            if not submitted:
                raise
            said = f"the {submitted:,} runs that were queued before are cancelled"
            try:
                bus.request("scheduler", CancelGroup(group=group, reason="a later part of the sweep was refused"))
            except BusError as second:
                said = f"{submitted:,} runs were queued before, and could not be cancelled ({second})"
            refused = error if isinstance(error, CommandRefusedError) else None
            code = refused.code if refused else RefusalCode.INTERNAL
            raise CommandRefusedError(code, f"{error}\n{said}", refused.details if refused else None) from error
        submitted += len(piece)
        warnings.update({warning: None for each in answer.runs for warning in each.warnings})
    return list(warnings)
