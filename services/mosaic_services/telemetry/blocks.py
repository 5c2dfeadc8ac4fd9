"""The pyramid over a series: blocks of 64, 512 and 4,096 lines, each with its count, sum, minimum and maximum. Pure.

A block holds the points of the lines from `block << level` on, `1 << level` lines. It closes when a point beyond it
arrives; a closed block never changes. The points after the last closed block are read from their own table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["LEVELS", "Block", "Closed", "Tower", "fold_points"]

LEVELS = (6, 9, 12)
"""A block of each level covers `1 << level` lines."""
_MANY = 128
"""Beyond this many points, numpy is faster than a loop."""
_PARTS = 8
"""Parts of an open block that are kept apart before they are added up."""

# Plain tuples, since a batch makes a dozen of them.
Block: TypeAlias = tuple[int, int, int, float, float | None, float | None, int, int, float | None]
"""Block, points, points with a value, sum, minimum, maximum, lowest step, highest step, time of the last point."""
Closed: TypeAlias = tuple[int, Block]
"""A level and a closed block of it."""


class Tower:
    """The open blocks of one series, one for each level, each as a list of its parts."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: list[list[Block]] = [[] for _ in LEVELS]

    def add(self, blocks: Iterable[Block], closed: list[Closed], storey: int = 0) -> None:
        """Take blocks of a level in order, whole or in parts, and append those that they close."""
        mine = self._open[storey]
        full: list[Block] = []
        for each in blocks:
            if mine and mine[0][0] != each[0]:
                full.append(_combine(mine))
                mine = []
            elif len(mine) == _PARTS:
                mine = [_combine(mine)]
            mine.append(each)
        self._open[storey] = mine
        if full:
            closed += [(LEVELS[storey], each) for each in full]
            if storey + 1 < len(LEVELS):
                shift = LEVELS[storey + 1] - LEVELS[storey]
                self.add([(each[0] >> shift, *each[1:]) for each in full], closed, storey + 1)


def fold_points(
    numbers: Sequence[int], steps: Sequence[int], values: Sequence[float | None], times: Sequence[float | None]
) -> list[Block]:
    """Sum up points, given as columns in the order of their lines, by blocks of the lowest level.

    If the numbers are a range, every point has a value.
    """
    if isinstance(numbers, range) and len(numbers) > _MANY:
        return _fold_many(numbers, steps, values, times)
    level = LEVELS[0]
    blocks: list[Block] = []
    start, count = 0, len(numbers)
    while start < count:
        block = numbers[start] >> level
        end = min(start + (1 << level), count)
        while numbers[end - 1] >> level != block:  # only where lines have no point
            end -= 1
        some = values[start:end]
        known = [each for each in some if each is not None and each == each]  # noqa: PLR0124 - NaN
        total, low, high = sum(known), min(known, default=None), max(known, default=None)
        part = steps[start:end]
        blocks.append((block, end - start, len(known), total, low, high, min(part), max(part), times[end - 1]))
        start = end
    return blocks


def _fold_many(
    numbers: range, steps: Sequence[int], values: Sequence[float | None], times: Sequence[float | None]
) -> list[Block]:
    """Do the same for many lines that all have a point with a value."""
    import numpy as np  # noqa: PLC0415 - takes a moment to import, which a service needs to start without

    level = LEVELS[0]
    first, count = numbers.start, len(numbers)
    starts = [0, *range((1 << level) - first % (1 << level), count, 1 << level)]
    ends = [*starts[1:], count]
    counts = [end - start for start, end in zip(starts, ends, strict=True)]
    at, value, step = np.array(starts), np.array(values, dtype=np.float64), np.array(steps, dtype=np.int64)
    columns = (
        range(first >> level, (first >> level) + len(starts)),
        counts,
        counts,
        np.add.reduceat(value, at).tolist(),
        np.minimum.reduceat(value, at).tolist(),
        np.maximum.reduceat(value, at).tolist(),
        np.minimum.reduceat(step, at).tolist(),
        np.maximum.reduceat(step, at).tolist(),
        [times[end - 1] for end in ends],
    )
    return list(zip(*columns, strict=True))


def _combine(parts: list[Block]) -> Block:
    """Add up the parts of a block, in order."""
    if len(parts) == 1:
        return parts[0]
    blocks, counts, valued, totals, lows, highs, firsts, lasts, times = zip(*parts, strict=True)
    return (
        blocks[0],
        sum(counts),
        sum(valued),
        sum(totals),
        min((each for each in lows if each is not None), default=None),
        max((each for each in highs if each is not None), default=None),
        min(firsts),
        max(lasts),
        next((each for each in reversed(times) if each is not None), None),
    )
