"""Joins the attempts of a run into one course of steps, in which steps that were played twice count once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

__all__ = ["LAST_NUMBER", "NUMBER_BITS", "Part", "cut_since", "join", "span", "stored"]

NUMBER_BITS = 40
"""An event's id is its stream's id and, in the lower bits, its number: insertion is always at the end of a stream."""
LAST_NUMBER = (1 << NUMBER_BITS) - 1
_ALL_STEPS = (1 << 63) - 1
_FROM_THE_BEGINNING = -1


class Part(NamedTuple):
    """What one attempt contributes to its run: its events up to a step."""

    stream: int
    attempt: int
    last_step: int


def join(db: sqlite3.Connection, run: str, attempt: int | None = None) -> list[Part]:
    """Return the parts of a run, oldest first, or the whole of one attempt.

    An attempt that resumes from a checkpoint plays the steps after it again, and one that starts from the beginning
    plays all of them again: of the attempts before it, only the steps up to there count. An attempt that has not
    reported anything of a step yet replaces nothing.
    """
    streams = db.execute(
        "SELECT id, attempt FROM streams WHERE run = ? AND kind = 'journal' ORDER BY attempt DESC", (run,)
    ).fetchall()
    parts: list[Part] = []
    last = _ALL_STEPS
    for stream, each in streams:
        if attempt is not None:
            if attempt == each:
                parts.append(Part(stream, each, _ALL_STEPS))
            continue
        if last < 0:  # a later attempt started from the beginning
            break
        parts.append(Part(stream, each, last))
        if len(streams) > 1 and (first := _first_step(db, stream)) is not None:
            last = min(_resumed_at(db, stream), first[1] - 1, last)
    return parts[::-1]


def stored(db: sqlite3.Connection, run: str) -> list[int]:
    """Return how many lines are stored of the journal of each attempt, the first attempt first."""
    found = dict(
        db.execute("SELECT attempt, number FROM streams WHERE run = ? AND kind = 'journal'", (run,)).fetchall()
    )
    return [found.get(attempt, 0) for attempt in range(1, max(found, default=0) + 1)]


def cut_since(db: sqlite3.Connection, run: str, since: Sequence[int]) -> int | None:
    """Return the step up to which points that were read at a position still count; None if all do.

    An attempt that has begun since then replaces the steps after its checkpoint, or all of them.
    """
    cuts = []
    for stream, attempt in db.execute(
        "SELECT id, attempt FROM streams WHERE run = ? AND kind = 'journal' AND attempt > 1",
        (run,),
    ).fetchall():
        known = since[attempt - 1] if attempt <= len(since) else 0
        if (first := _first_step(db, stream)) is not None and first[0] >= known:
            cuts.append(min(_resumed_at(db, stream), first[1] - 1))
    return min(cuts, default=None)


def span(stream: int) -> tuple[int, int]:
    """Return the ids of a stream's first and last possible event."""
    return stream << NUMBER_BITS, stream << NUMBER_BITS | LAST_NUMBER


def _first_step(db: sqlite3.Connection, stream: int) -> tuple[int, int] | None:
    """Find the first line and step that an attempt reported anything of."""
    row: tuple[int, int] | None = db.execute(
        "SELECT id & ?, step FROM events WHERE id BETWEEN ? AND ? AND kind IN ('step', 'episode', 'scalars')"
        " AND step IS NOT NULL ORDER BY id LIMIT 1",
        (LAST_NUMBER, *span(stream)),
    ).fetchone()
    return row


def _resumed_at(db: sqlite3.Connection, stream: int) -> int:
    """Find the step of the checkpoint that an attempt resumed from."""
    row = db.execute(
        "SELECT step FROM events INDEXED BY events_but_steps WHERE id BETWEEN ? AND ? AND kind <> 'step'"
        " AND kind = 'checkpoint_loaded' AND step IS NOT NULL ORDER BY id LIMIT 1",
        span(stream),
    ).fetchone()
    return _FROM_THE_BEGINNING if row is None else int(row[0])
