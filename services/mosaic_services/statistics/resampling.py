"""The bootstrap, of episodes within strata or of training seeds and their episodes, and intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import numpy.typing as npt

    Array = npt.NDArray[np.float64]
    Indices = npt.NDArray[np.integer]
    Drawn = npt.NDArray[Any]
    """Scores, or their ranks."""

__all__ = [
    "CONFIDENCE",
    "Interval",
    "bootstrap",
    "draws",
    "in_order",
    "nested_bootstrap",
    "percentile_interval",
    "resample_count",
    "share_interval",
    "t_interval",
]

CONFIDENCE = 0.95
Interval = tuple[float, float]
# Scores that are held at once: 2 MB of them, which stay in the cache of a core.
_CHUNK = 250_000
_MOST_RESAMPLES = 10_000
_FEWEST_RESAMPLES = 2_000
# Above, an index needs more than the 16 bits that NumPy sorts by radix.
_MOST_SMALL = 1 << 16
# Scores drawn in all for one interval, as far as the limits above allow: keeps 100,000 episodes within seconds.
_DRAWN = 10_000_000


def resample_count(scores: int) -> int:
    """How many resamples an interval of that many scores is made of."""
    return int(np.clip(_DRAWN // max(scores, 1), _FEWEST_RESAMPLES, _MOST_RESAMPLES))


def draws(sizes: Sequence[int], generator: np.random.Generator, resamples: int) -> Iterator[list[Indices]]:
    """Yield chunks of resamples: for each stratum a matrix of indices, one resample per row."""
    rows = max(1, _CHUNK // max(sum(sizes), 1))
    for start in range(0, resamples, rows):
        count = min(rows, resamples - start)
        yield [generator.integers(0, size, (count, size), dtype=np.uint32) for size in sizes]


def bootstrap(
    strata: Sequence[Drawn], statistic: Callable[[Drawn], Array], chunks: Iterable[Sequence[Indices]]
) -> Array:
    """Apply a statistic to resamples; each stratum is resampled by itself, and their scores are joined.

    `chunks` comes from `draws`, or is any other stream of indices. The statistic gets one resample per row.
    """
    found = [
        statistic(np.concatenate([scores[chosen] for scores, chosen in zip(strata, chunk, strict=True)], axis=-1))
        for chunk in chunks
    ]
    return np.concatenate(found)


def nested_bootstrap(
    seeds: Drawn, statistic: Callable[[Drawn], Array], generator: np.random.Generator, resamples: int
) -> Array:
    """Resample training seeds (rows), then the episodes of each seed that was drawn, and apply a statistic."""
    count, episodes = seeds.shape
    flat = seeds.ravel()
    rows = max(1, _CHUNK // seeds.size)
    found = []
    for start in range(0, resamples, rows):
        shape = (min(rows, resamples - start), count, episodes)
        first = generator.integers(0, count, (*shape[:2], 1)) * episodes
        drawn = flat[first + generator.integers(0, episodes, shape, dtype=np.uint32)]
        found.append(statistic(drawn.reshape(shape[0], -1)))
    return np.concatenate(found)


def in_order(ordered: Array, drawn: Drawn) -> Array:
    """Return the scores at the indices that were drawn, each row in order; the scores themselves are in order.

    The indices are sorted in place of the scores: several times as fast.
    """
    small = len(ordered) <= _MOST_SMALL
    indices: Indices = drawn.astype(np.uint16 if small else np.uint32)
    indices.sort(axis=-1, kind="stable" if small else None)
    found: Array = ordered[indices]
    return found


def percentile_interval(estimates: Array, confidence: float = CONFIDENCE) -> Interval:
    """The central part of bootstrap estimates."""
    low, high = np.quantile(estimates, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def t_interval(values: Array, confidence: float = CONFIDENCE) -> Interval | None:
    """Student's t interval of a mean; None for a single value, which has no spread."""
    if len(values) < 2:  # noqa: PLR2004 - two values are the fewest that have a spread
        return None
    from scipy.special import stdtrit  # noqa: PLC0415 - takes a moment to import

    mean = float(values.mean())
    half = float(stdtrit(len(values) - 1, (1 + confidence) / 2) * values.std(ddof=1) / np.sqrt(len(values)))
    return mean - half, mean + half


def share_interval(shares: Array, count: int, confidence: float = CONFIDENCE) -> tuple[Array, Array]:
    """Percentile bootstrap intervals of shares of so many scores, without resampling: the estimates are binomial."""
    from scipy.special import bdtr, bdtrik  # noqa: PLC0415 - takes a moment to import

    inside = (shares > 0) & (shares < 1)

    def quantile(level: float) -> Array:
        found = shares * count
        number = np.ceil(bdtrik(level, count, shares[inside]))
        below = np.maximum(number - 1, 0)
        found[inside] = np.where(bdtr(below, count, shares[inside]) >= level, below, number)
        return found / count

    return quantile((1 - confidence) / 2), quantile((1 + confidence) / 2)
