"""The score of a setting over its training seeds: mean and interquartile mean, with 95 % intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

__all__ = ["FEW_SEEDS", "Score", "score"]

# Below this number of training seeds an interval says little; callers warn.
FEW_SEEDS = 5
_CONFIDENCE = 0.95
_RESAMPLES = 10_000


@dataclass(frozen=True)
class Score:
    """Statistics over training seeds. Intervals are None for a single seed."""

    n: int
    mean: float
    mean_interval: tuple[float, float] | None
    """Student's t."""
    iqm: float
    iqm_interval: tuple[float, float] | None
    """Percentile bootstrap with a fixed seed, so that the same runs give the same interval."""
    median: float
    low: float
    high: float


def score(values: Sequence[float]) -> Score:
    """Summarise one value per training seed; there must be at least one."""
    found = np.sort(np.asarray(values, dtype=np.float64))
    return Score(
        n=len(found),
        mean=float(found.mean()),
        mean_interval=_t_interval(found),
        iqm=float(_iqm(found)),
        iqm_interval=_bootstrap(found),
        median=float(np.median(found)),
        low=float(found[0]),
        high=float(found[-1]),
    )


def _iqm(ordered: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Mean of the middle half along the last axis, which is sorted."""
    count = ordered.shape[-1]
    cut = int(count * 0.25)
    middle: npt.NDArray[np.float64] = ordered[..., cut : count - cut].mean(-1)
    return middle


def _t_interval(found: npt.NDArray[np.float64]) -> tuple[float, float] | None:
    if len(found) < 2:  # noqa: PLR2004 - one value has no spread
        return None
    from scipy.special import stdtrit  # noqa: PLC0415 - takes a moment to import

    half = float(stdtrit(len(found) - 1, (1 + _CONFIDENCE) / 2) * found.std(ddof=1) / np.sqrt(len(found)))
    return float(found.mean()) - half, float(found.mean()) + half


def _bootstrap(found: npt.NDArray[np.float64]) -> tuple[float, float] | None:
    if len(found) < 2:  # noqa: PLR2004 - as above
        return None
    drawn = np.random.default_rng(0).choice(found, (_RESAMPLES, len(found)))
    low, high = np.quantile(_iqm(np.sort(drawn)), [(1 - _CONFIDENCE) / 2, (1 + _CONFIDENCE) / 2])
    return float(low), float(high)
