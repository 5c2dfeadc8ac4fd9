"""Curves made of characters: sparklines of blocks, plots of braille dots."""

from __future__ import annotations

import itertools
import math

__all__ = ["bar", "braille", "sparkline", "thin"]

_BLOCKS = "▁▂▃▄▅▆▇█"
# Bits of the eight dots of a braille character, by row (top first) and column.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_EMPTY = 0x2800


def thin(values: list[float], count: int) -> list[float]:
    """At most `count` values: each the mean of its share of the finite ones."""
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) <= count:
        return finite
    edges = [round(i * len(finite) / count) for i in range(count + 1)]
    return [sum(finite[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]


def sparkline(values: list[float], width: int) -> str:
    """One line of blocks, lowest value to highest."""
    shown = thin(values, width)
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    span = high - low
    if not span:
        return _BLOCKS[3] * len(shown)
    return "".join(_BLOCKS[min(7, int((value - low) / span * 8))] for value in shown)


def bar(fraction: float, width: int) -> str:
    """A progress bar of blocks."""
    filled = round(max(0.0, min(1.0, fraction)) * width)
    return "█" * filled + "░" * (width - filled)


def braille(values: list[float], width: int, height: int) -> list[str]:
    """Draw a curve on `height` lines of `width` characters, two by four dots each; neighbours are joined."""
    points = thin(values, width * 2)
    if not points:
        return [" " * width] * height
    low, high = min(points), max(points)
    span = (high - low) or 1.0
    rows = height * 4
    cells = [[0] * width for _ in range(height)]
    levels = [rows - 1 - round((value - low) / span * (rows - 1)) for value in points]
    # Few points are spread over the width, so that a young curve is as wide as an old one.
    scale = (width * 2 - 1) / max(1, len(levels) - 1)
    before = levels[0]
    for x in range(width * 2 if len(levels) > 1 else 1):
        at = x / scale
        left = min(int(at), len(levels) - 1)
        right = min(left + 1, len(levels) - 1)
        level = round(levels[left] + (levels[right] - levels[left]) * (at - left))
        # Fill the column between two far points, so that the line has no holes.
        for y in range(min(level, before + (before < level)), max(level, before - (before > level)) + 1):
            cells[y // 4][x // 2] |= _DOTS[y % 4][x % 2]
        before = level
    return ["".join(chr(_EMPTY + cell) for cell in line) for line in cells]
