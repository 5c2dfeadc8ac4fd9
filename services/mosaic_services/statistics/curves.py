"""The mean curve of several runs: each interpolated to common steps, with a 95 % interval over seeds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

__all__ = ["Curve", "mean_curve"]

_POINTS = 200


@dataclass(frozen=True)
class Curve:
    """A curve over steps or seconds; `low` and `high` are equal to `mean` where only one run has come that far."""

    steps: Array
    mean: Array
    low: Array
    high: Array


def mean_curve(
    series: Iterable[tuple[Sequence[float | None], Sequence[float | None]]], points: int = _POINTS
) -> Curve | None:
    """Average curves, each a pair of steps and values, over their common and own steps; None if none has a value."""
    curves = [_known(steps, values) for steps, values in series]
    curves = [(steps, values) for steps, values in curves if len(steps)]
    if not curves:
        return None
    first = min(float(steps[0]) for steps, _ in curves)
    last = max(float(steps[-1]) for steps, _ in curves)
    grid = np.linspace(first, last, points if last > first else 1)
    rows = np.stack([np.interp(grid, steps, values, left=np.nan, right=np.nan) for steps, values in curves])
    count = np.isfinite(rows).sum(0)
    grid, rows, count = grid[count > 0], rows[:, count > 0], count[count > 0]
    mean = np.nanmean(rows, 0)
    return Curve(grid, mean, *_interval(rows, mean, count))


def _known(steps: Sequence[float | None], values: Sequence[float | None]) -> tuple[Array, Array]:
    pairs = [pair for pair in zip(steps, values, strict=True) if None not in pair]
    known, found = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
    return known, found


def _interval(rows: Array, mean: Array, count: npt.NDArray[np.int64]) -> tuple[Array, Array]:
    from scipy.special import stdtrit  # noqa: PLC0415 - takes a moment to import

    several = count > 1
    half = np.zeros_like(mean)
    if several.any():
        deviation = np.nanstd(rows[:, several], 0, ddof=1)
        half[several] = stdtrit(count[several] - 1, 0.975) * deviation / np.sqrt(count[several])
    return mean - half, mean + half
