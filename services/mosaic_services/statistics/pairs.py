"""Two sets of scores side by side: paired differences where episodes are shared, and the probability of improvement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mosaic_services.statistics.aggregates import probability_of_improvement
from mosaic_services.statistics.resampling import CONFIDENCE, Interval, percentile_interval, t_interval

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

__all__ = ["Difference", "Improvement", "improvement", "paired_difference"]

_RESAMPLES = 2_000
# Above this number of scores on a side, the normal approximation is as good, and takes no time.
_MOST_RESAMPLED = 500


@dataclass(frozen=True)
class Difference:
    """Scores of two in the same episodes, less each other."""

    episodes: int
    mean: float
    interval: Interval | None
    """Student's t on the differences; None for one episode."""
    better: float
    """Share of episodes in which the first has the higher score."""
    equal: float


@dataclass(frozen=True)
class Improvement:
    """Probability that a score of the first is above a score of the second; a tie counts half."""

    probability: float
    interval: Interval
    """Percentile bootstrap of both sides; with many scores, the normal approximation of DeLong et al. (1988)."""


def paired_difference(scores: Array, others: Array, confidence: float = CONFIDENCE) -> Difference:
    """Compare scores of the same episodes, in the same order."""
    found = np.asarray(scores, dtype=np.float64) - np.asarray(others, dtype=np.float64)
    return Difference(
        episodes=len(found),
        mean=float(found.mean()),
        interval=t_interval(found, confidence),
        better=float((found > 0).mean()),
        equal=float((found == 0).mean()),
    )


def improvement(scores: Array, others: Array, confidence: float = CONFIDENCE) -> Improvement:
    """Probability of improvement with its interval; the two sides are resampled independently of each other."""
    point = float(probability_of_improvement(scores, others))
    many = max(len(scores), len(others)) > _MOST_RESAMPLED
    interval = _delong(scores, others, point, confidence) if many else _resampled(scores, others, confidence)
    return Improvement(point, interval)


def _resampled(scores: Array, others: Array, confidence: float) -> Interval:
    """Count how often each score was drawn: the probability is then a product of matrices."""
    generator = np.random.default_rng(0)
    left, right = (
        generator.multinomial(len(side), np.full(len(side), 1 / len(side)), _RESAMPLES).astype(np.float64)
        for side in (scores, others)
    )
    wins = (scores[:, None] > others) + 0.5 * (scores[:, None] == others)
    estimates = np.einsum("rj,rj->r", left @ wins, right) / (len(scores) * len(others))
    return percentile_interval(estimates, confidence)


def _delong(scores: Array, others: Array, point: float, confidence: float) -> Interval:
    from scipy.special import ndtri  # noqa: PLC0415 - takes a moment to import

    variance = sum(_placements(*pair).var(ddof=1) / len(pair[0]) for pair in ((scores, others), (others, scores)))
    half = float(ndtri((1 + confidence) / 2) * np.sqrt(variance))
    return max(0.0, point - half), min(1.0, point + half)


def _placements(scores: Array, others: Array) -> Array:
    """For each score, the share of the others that it beats."""
    ordered = np.sort(others)
    both = np.searchsorted(ordered, scores, side="left") + np.searchsorted(ordered, scores, side="right")
    shares: Array = both / (2 * len(ordered))
    return shares
