"""Plots in a terminal: sparklines of blocks, curves of braille dots."""

from __future__ import annotations

import itertools
import math

__all__ = ["COLOURS", "bar", "braille", "draw_curves", "sparkline", "thin"]

COLOURS = ("cyan", "yellow", "magenta", "green", "red", "blue", "bright_white")

_BLOCKS = "▁▂▃▄▅▆▇█"
# Bits of the eight dots of a braille character, by row (top first) and column.
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_EMPTY = 0x2800


def thin(values: list[float], count: int) -> list[float]:
    """Reduce the finite values to at most `count` means."""
    finite = [value for value in values if math.isfinite(value)]
    if len(finite) <= count:
        return finite
    edges = [round(i * len(finite) / count) for i in range(count + 1)]
    return [sum(finite[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]


def sparkline(values: list[float], width: int) -> str:
    """One line of blocks, scaled from the lowest to the highest value."""
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
    """Draw a curve in `height` lines of `width` characters of two by four dots; neighbouring points are joined."""
    points = thin(values, width * 2)
    if not points:
        return [" " * width] * height
    low, high = min(points), max(points)
    span = (high - low) or 1.0
    rows = height * 4
    cells = [[0] * width for _ in range(height)]
    levels = [rows - 1 - round((value - low) / span * (rows - 1)) for value in points]
    # A short curve is stretched over the whole width.
    scale = (width * 2 - 1) / max(1, len(levels) - 1)
    before = levels[0]
    for x in range(width * 2 if len(levels) > 1 else 1):
        at = x / scale
        left = min(int(at), len(levels) - 1)
        right = min(left + 1, len(levels) - 1)
        level = round(levels[left] + (levels[right] - levels[left]) * (at - left))
        # Fill the column between two distant points, so that the line has no gaps.
        for y in range(min(level, before + (before < level)), max(level, before - (before > level)) + 1):
            cells[y // 4][x // 2] |= _DOTS[y % 4][x % 2]
        before = level
    return ["".join(chr(_EMPTY + cell) for cell in line) for line in cells]


def draw_curves(curves: list[tuple[list[float], list[float]]], width: int, height: int) -> None:
    """Print curves, each its steps and values, on common axes; the first is drawn last, on top of the others."""
    from mosaic_services.cli.display.output import number, say, styled  # noqa: PLC0415 - only this prints

    steps = [step for xs, _ in curves for step in xs]
    values = [value for _, ys in curves for value in ys]
    left, right, low, high = min(steps), max(steps), min(values), max(values)
    across, down = (right - left) or 1.0, (high - low) or 1.0
    rows = height * 4
    cells = [[(0, "")] * width for _ in range(height)]
    for place, (xs, ys) in reversed(list(enumerate(curves))):
        colour = COLOURS[place % len(COLOURS)]
        dots = [
            (round((x - left) / across * (width * 2 - 1)), rows - 1 - round((y - low) / down * (rows - 1)))
            for x, y in zip(xs, ys, strict=True)
        ]
        for (x, y), (next_x, next_y) in itertools.pairwise([*dots, dots[-1]]):
            span = max(next_x - x, abs(next_y - y), 1)
            for part in range(span + 1):
                at_x, at_y = x + (next_x - x) * part // span, round(y + (next_y - y) * part / span)
                mask = cells[at_y // 4][at_x // 2][0] | _DOTS[at_y % 4][at_x % 2]
                cells[at_y // 4][at_x // 2] = (mask, colour)
    for index, line in enumerate(cells):
        label = number(high) if index == 0 else number(low) if index == height - 1 else ""
        say((f"{label:>10} ", "bright_black"), styled(*((chr(_EMPTY + mask), colour) for mask, colour in line)))
    first, last = f"step {left:,.0f}", f"{right:,.0f}"
    say((f"{'':>10} {first}{last:>{max(0, width - len(first))}}", "bright_black"))
