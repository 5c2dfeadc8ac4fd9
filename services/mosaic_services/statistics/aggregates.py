"""Aggregates of scores: mean of the middle half, optimality gap, performance profile, probability of improvement.

Scores lie along the last axis; other axes are resamples or groups. On a matrix of runs and tasks, flatten the scores:
the results then equal those of rliable (Agarwal et al., 2021), whose functions flatten too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

__all__ = ["iqm", "iqm_of_sorted", "optimality_gap", "probability_of_improvement", "profile"]


def iqm(scores: Array) -> Array:
    """Interquartile mean: the mean of the middle half."""
    return iqm_of_sorted(np.sort(scores))


def iqm_of_sorted(ordered: Array) -> Array:
    """Interquartile mean of scores that are sorted along the last axis."""
    count = ordered.shape[-1]
    cut = int(count * 0.25)
    middle: Array = ordered[..., cut : count - cut].mean(-1)
    return middle


def optimality_gap(scores: Array, target: float) -> Array:
    """How far scores stay below a target on average; a score above the target counts as the target."""
    gap: Array = target - np.minimum(scores, target).mean(-1)
    return gap


def profile(scores: Array, thresholds: Array) -> Array:
    """Share of scores above each threshold."""
    ordered = np.sort(scores)
    count = ordered.shape[-1]
    rows = ordered.reshape(-1, count)
    above = np.stack([count - np.searchsorted(row, thresholds, side="right") for row in rows])
    shares: Array = above.reshape(*ordered.shape[:-1], len(thresholds)) / count
    return shares


def probability_of_improvement(scores: Array, others: Array) -> Array:
    """Probability that a score drawn from `scores` is above one drawn from `others`; a tie counts half."""
    left, right = np.atleast_2d(scores), np.sort(np.atleast_2d(others))
    points = np.array(
        [
            np.searchsorted(y, x, side="left").mean() + np.searchsorted(y, x, side="right").mean()
            for x, y in zip(left, right, strict=True)
        ]
    )
    found: Array = (points / (2 * right.shape[-1])).reshape(np.shape(scores)[:-1])
    return found
