"""A set of scores in numbers: mean, interquartile mean, median and optimality gap, with intervals.

The scores are those of episodes of one checkpoint, or one score per training seed: the caller knows which, and names
the intervals accordingly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mosaic_services.statistics.aggregates import iqm_of_sorted, optimality_gap
from mosaic_services.statistics.resampling import (
    CONFIDENCE,
    Interval,
    bootstrap,
    draws,
    in_order,
    nested_bootstrap,
    percentile_interval,
    resample_count,
    t_interval,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

__all__ = ["FEW_EPISODES", "FEW_SEEDS", "AlgorithmScore", "Score", "algorithm_score", "score"]

# Below these numbers an interval says little; callers warn.
FEW_SEEDS = 5
FEW_EPISODES = 30


@dataclass(frozen=True)
class Score:
    """Statistics of a set of scores. Intervals are None for a single score."""

    n: int
    mean: float
    mean_interval: Interval | None
    """Student's t."""
    iqm: float
    iqm_interval: Interval | None
    """Percentile bootstrap with a fixed seed, so that the same scores give the same interval."""
    median: float
    median_interval: Interval | None
    """As that of the IQM."""
    low: float
    high: float
    gap: float | None = None
    """Optimality gap; None without a target."""
    gap_interval: Interval | None = None
    """Student's t."""


@dataclass(frozen=True)
class AlgorithmScore:
    """Statistics of an algorithm over its training seeds, each with the same number of episodes."""

    seeds: int
    episodes: int
    """Of each seed."""
    mean: float
    mean_interval: Interval | None
    """Student's t on the means of the seeds. All intervals are None for a single seed."""
    mean_nested: Interval | None
    """Nested bootstrap: training seeds, then their episodes. So are the intervals below."""
    iqm: float
    iqm_nested: Interval | None
    median: float
    median_nested: Interval | None
    gap: float | None
    gap_nested: Interval | None


def score(values: Sequence[float] | Array, confidence: float = CONFIDENCE, target: float | None = None) -> Score:
    """Summarise scores; there must be at least one."""
    found = np.sort(np.asarray(values, dtype=np.float64))
    several = len(found) > 1
    estimates = _resampled(found) if several else None
    below = None if target is None else t_interval(np.minimum(found, target), confidence)
    return Score(
        n=len(found),
        mean=float(found.mean()),
        mean_interval=t_interval(found, confidence),
        iqm=float(iqm_of_sorted(found)),
        iqm_interval=None if estimates is None else percentile_interval(estimates[:, 0], confidence),
        median=float(np.median(found)),
        median_interval=None if estimates is None else percentile_interval(estimates[:, 1], confidence),
        low=float(found[0]),
        high=float(found[-1]),
        gap=None if target is None else float(optimality_gap(found, target)),
        gap_interval=None if target is None or below is None else (target - below[1], target - below[0]),
    )


def algorithm_score(
    seeds: Sequence[Array], confidence: float = CONFIDENCE, target: float | None = None
) -> AlgorithmScore:
    """Summarise the episodes of several training seeds; of each seed as many count as the shortest has."""
    episodes = min(len(each) for each in seeds)
    table = np.stack([np.asarray(each, dtype=np.float64)[:episodes] for each in seeds])
    order = np.argsort(table, axis=None, kind="stable")
    pooled = table.ravel()[order]
    ranks = np.empty_like(order)
    ranks[order] = np.arange(table.size)

    def statistics(rows: Array) -> Array:
        ordered = in_order(pooled, rows)
        gap = np.zeros(len(rows)) if target is None else optimality_gap(ordered, target)
        return np.stack([ordered.mean(-1), iqm_of_sorted(ordered), _median(ordered), gap], axis=-1)

    nested: list[Interval | None] = [None] * 4
    if len(table) > 1:
        drawn = nested_bootstrap(
            ranks.reshape(table.shape), statistics, np.random.default_rng(0), resample_count(table.size)
        )
        nested = [percentile_interval(column, confidence) for column in drawn.T]
    return AlgorithmScore(
        seeds=len(table),
        episodes=episodes,
        mean=float(pooled.mean()),
        mean_interval=t_interval(table.mean(-1), confidence),
        mean_nested=nested[0],
        iqm=float(iqm_of_sorted(pooled)),
        iqm_nested=nested[1],
        median=float(np.median(pooled)),
        median_nested=nested[2],
        gap=None if target is None else float(optimality_gap(pooled, target)),
        gap_nested=None if target is None else nested[3],
    )


def _resampled(found: Array) -> Array:
    """IQM and median of resamples, one row each."""

    def statistics(rows: Array) -> Array:
        ordered = in_order(found, rows)
        return np.stack([iqm_of_sorted(ordered), _median(ordered)], axis=-1)

    return bootstrap(
        [np.arange(len(found))], statistics, draws([len(found)], np.random.default_rng(0), resample_count(len(found)))
    )


def _median(ordered: Array) -> Array:
    count = ordered.shape[-1]
    middle: Array = (ordered[..., (count - 1) // 2] + ordered[..., count // 2]) / 2
    return middle
