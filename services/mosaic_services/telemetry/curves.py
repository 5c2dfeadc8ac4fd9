"""Reads a series from its pyramid, thinned to a maximum number of points that keep every minimum and maximum.

The points of an answer are buckets of lines: their width is a power of two and they begin at its multiples. So a bucket
that is full has the same content in every later answer, and a curve that grows never changes behind its end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from mosaic_bus.commands import Curve
from mosaic_services.telemetry.blocks import LEVELS
from mosaic_services.telemetry.course import LAST_NUMBER
from mosaic_services.telemetry.series import choose, read_blocks, read_folded, read_points

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Sequence

    import numpy.typing as npt

    from mosaic_services.telemetry.course import Part
    from mosaic_services.telemetry.series import Found

__all__ = ["Range", "count_points", "read_curve"]

_STEPS = (-(1 << 63), (1 << 63) - 1)
_COARSEST = 40


class Range(NamedTuple):
    """The steps of a series that are asked for, and for each attempt the first line."""

    first_step: int | None = None
    last_step: int | None = None
    since: tuple[int, ...] = ()

    def steps(self, part: Part) -> tuple[int, int]:
        """Return the first and last step of a part."""
        first = _STEPS[0] if self.first_step is None else self.first_step
        last = _STEPS[1] if self.last_step is None else self.last_step
        return first, min(last, part.last_step)

    def line(self, part: Part) -> int:
        """Return the first line of a part."""
        return self.since[part.attempt - 1] if part.attempt <= len(self.since) else 0


class Columns(NamedTuple):
    """Blocks of one level as columns; a point is a block of level 0."""

    block: npt.NDArray[np.int64]
    n: npt.NDArray[np.int64]
    valued: npt.NDArray[np.int64]
    total: npt.NDArray[np.float64]
    low: npt.NDArray[np.float64]  # NaN where there is none
    high: npt.NDArray[np.float64]
    first_step: npt.NDArray[np.int64]
    last_step: npt.NDArray[np.int64]
    ts: npt.NDArray[np.float64]

    def take(self, chosen: npt.NDArray[Any]) -> Columns:
        """Return some of the blocks."""
        return Columns(*(column[chosen] for column in self))


_KINDS = (np.int64, np.int64, np.int64, np.float64, np.float64, np.float64, np.int64, np.int64, np.float64)


def _from_blocks(rows: Sequence[tuple[Any, ...]]) -> Columns:
    columns: Any = zip(*rows, strict=True) if rows else [()] * len(_KINDS)
    arrays: Any = (np.array(column, dtype=kind) for column, kind in zip(columns, _KINDS, strict=True))
    return Columns(*arrays)


def _from_points(rows: Sequence[tuple[Any, ...]]) -> Columns:
    numbers, steps, values, times = zip(*rows, strict=True) if rows else [()] * 4
    value, step = np.array(values, dtype=np.float64), np.array(steps, dtype=np.int64)
    known = ~np.isnan(value)
    ones = np.ones(len(value), dtype=np.int64)
    number, ts = np.array(numbers, dtype=np.int64), np.array(times, dtype=np.float64)
    return Columns(number, ones, known.astype(np.int64), np.where(known, value, 0.0), value, value, step, step, ts)


@dataclass
class _Pieces:
    """What covers a range of one series: whole blocks, each as coarse as it can be."""

    found: Found
    by_level: dict[int, list[Columns]] = field(default_factory=dict)

    def put(self, level: int, columns: Columns) -> None:
        if len(columns.block):
            self.by_level.setdefault(level, []).append(columns)

    def each(self) -> Iterator[tuple[int, Columns]]:
        for level, pieces in self.by_level.items():
            for columns in pieces:
                yield level, columns

    @property
    def points(self) -> int:
        return sum(int(columns.n.sum()) for _, columns in self.each())

    def most_buckets(self, width: int) -> int:
        """Return an upper limit of the number of buckets that are `1 << width` lines wide."""
        most = 0
        for level, columns in self.each():
            if level <= width:
                most += len(np.unique(columns.block >> (width - level)))
            else:
                most += int(np.minimum(columns.n, 1 << (level - width)).sum())
        return most


def read_curve(
    db: sqlite3.Connection, metric: str, parts: Sequence[Part], agent: str | None, asked: Range, max_points: int
) -> Curve:
    """Return one series of a run as a curve."""
    found = choose(db, metric, parts, agent)
    folded = any(each.id is None for each in found)
    if folded:  # a step may be complete only with a later line, so that no line can be the end of what is known
        asked = asked._replace(since=())
    pieces = [_cover(db, each, asked) for each in found]
    points = sum(each.points for each in pieces)
    width = 0
    if points > max_points:
        width = next(k for k in range(1, _COARSEST) if sum(each.most_buckets(k) for each in pieces) <= max_points)
    buckets = [_merge(db, each, width) for each in pieces]
    joined = (
        Columns(*(np.concatenate(column) for column in zip(*buckets, strict=True))) if buckets else _from_points(())
    )
    # The mean of both, rounded down; their sum could be too large.
    middle = (joined.first_step & joined.last_step) + ((joined.first_step ^ joined.last_step) >> 1)
    order = np.argsort(middle, kind="stable")
    with np.errstate(all="ignore"):
        mean = joined.total / np.where(joined.valued > 0, joined.valued, np.nan)
    return Curve(
        metric=metric,
        steps=middle[order].tolist(),
        values=_optional(mean[order]),
        lows=_optional(joined.low[order]),
        highs=_optional(joined.high[order]),
        times=_optional(joined.ts[order]),
        counts=joined.n[order].tolist(),
        points=points,
        whole=folded or not asked.since,
    )


def count_points(db: sqlite3.Connection, metric: str, parts: Sequence[Part]) -> int:
    """Count the points of a run's series."""
    return sum(_cover(db, each, Range()).points for each in choose(db, metric, parts))


def _cover(db: sqlite3.Connection, found: Found, asked: Range) -> _Pieces:
    """Cover what is asked of a series with the coarsest blocks that lie within it."""
    part, series, name = found
    steps, line = asked.steps(part), asked.line(part)
    pieces = _Pieces(found)
    if steps[0] > steps[1]:
        return pieces
    if series is None:
        pieces.put(0, _from_points(read_folded(db, part, name, steps)))
        return pieces
    begin = 0  # the first line that no closed block of the levels so far covers
    crossing: list[tuple[int, int]] = []  # lines whose blocks lie across a border of the range
    for level in reversed(LEVELS):
        spans = [(first >> level, last >> level) for first, last in _joined(crossing)]
        spans.append((begin >> level, LAST_NUMBER))
        crossing = []
        for first, last in spans:
            rows = read_blocks(db, series, level, max(first, line >> level), last, steps)
            if not rows:
                continue
            blocks = _from_blocks(rows)
            inside = (blocks.first_step >= steps[0]) & (blocks.last_step <= steps[1]) & (blocks.block << level >= line)
            pieces.put(level, blocks.take(inside))
            crossing += [(block << level, (block + 1 << level) - 1) for block in blocks.block[~inside].tolist()]
        row = db.execute("SELECT max(block) FROM blocks WHERE series = ? AND level = ?", (series, level)).fetchone()
        begin = begin if row[0] is None else (row[0] + 1) << level
    for first, last in [*_joined(crossing), (begin, LAST_NUMBER)]:
        rows = read_points(db, part.stream, name, max(first, line), last)
        pieces.put(0, _from_points([row for row in rows if steps[0] <= row[1] <= steps[1]]))
    return pieces


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join spans that touch."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if joined and joined[-1][1] + 1 >= first:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined


def _merge(db: sqlite3.Connection, pieces: _Pieces, width: int) -> Columns:
    """Merge what covers a series into buckets of `1 << width` lines, each a block; single points if `width` is 0."""
    finest = max((level for level in LEVELS if level <= width), default=0)
    gathered = []
    for level, columns in pieces.each():
        if level <= width:
            gathered.append(columns._replace(block=columns.block >> (width - level)))
            continue
        for first, last in _joined([(block << level, (block + 1 << level) - 1) for block in columns.block.tolist()]):
            finer = _read(db, pieces.found, finest, first, last)
            gathered.append(finer._replace(block=finer.block >> (width - finest)))
    if not gathered:
        return _from_points(())
    parts = Columns(*(np.concatenate(column) for column in zip(*gathered, strict=True)))
    parts = parts.take(np.argsort(parts.block, kind="stable"))
    if width == 0:
        return parts
    starts = np.flatnonzero(np.diff(parts.block, prepend=-1))
    with np.errstate(all="ignore"):
        return Columns(
            parts.block[starts],
            np.add.reduceat(parts.n, starts),
            np.add.reduceat(parts.valued, starts),
            np.add.reduceat(parts.total, starts),
            np.fmin.reduceat(parts.low, starts),
            np.fmax.reduceat(parts.high, starts),
            np.minimum.reduceat(parts.first_step, starts),
            np.maximum.reduceat(parts.last_step, starts),
            np.fmax.reduceat(parts.ts, starts),
        )


def _read(db: sqlite3.Connection, found: Found, level: int, first: int, last: int) -> Columns:
    """Return the blocks of a level, or the points, of the lines from `first` to `last`."""
    if level == 0 or found.id is None:
        return _from_points(read_points(db, found.part.stream, found.name, first, last))
    return _from_blocks(read_blocks(db, found.id, level, first >> level, last >> level))


def _optional(column: npt.NDArray[np.float64]) -> list[float | None]:
    if not np.isnan(column).any():
        return column.tolist()  # type: ignore[no-any-return]
    return [None if value != value else value for value in column.tolist()]  # noqa: PLR0124 - NaN
