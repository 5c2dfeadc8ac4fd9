"""Games between two operators: win matrix, and Bradley-Terry ratings with draws and a first-mover advantage.

The model is that of Davidson (1970) with the order effect of Davidson and Beaver (1977). For operator i, who moves
first, against j, let a = s_i - s_j + h. Win, draw and loss have probabilities in the ratio exp(a/2) : exp(t) :
exp(-a/2). The rating s of an operator, the first-mover advantage h and the draw term t maximise the likelihood.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from mosaic_services.statistics.resampling import CONFIDENCE, Interval, percentile_interval

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

__all__ = ["ELO", "Games", "Meeting", "Ratings", "rate", "win_matrix"]

# A rating difference of 400 means odds of 10 to 1, as in chess.
ELO = 400 / math.log(10)
_RESAMPLES = 1_000
# Standard deviation of a normal prior on all parameters, 870 Elo points: without it, whoever wins every game would
# have an infinite rating. It moves other ratings by less than their intervals.
_PRIOR = 5.0
_STEPS = 50
_TOLERANCE = 1e-7
_LARGEST_STEP = 2.0


@dataclass(frozen=True)
class Games:
    """How often the operator that moved first won, drew and lost, by (first, second)."""

    counts: Mapping[tuple[str, str], tuple[int, int, int]]

    @property
    def operators(self) -> list[str]:
        """All operators, in the order in which they first appear."""
        return list(dict.fromkeys(operator for pair in self.counts for operator in pair))


@dataclass(frozen=True)
class Meeting:
    """The games of one operator against another, on either side."""

    wins: int
    draws: int
    losses: int
    points: float
    """Per game; a draw counts one half."""
    interval: Interval
    """Wilson's score interval; with draws it is wider than needed."""

    @property
    def games(self) -> int:
        """How many games they played."""
        return self.wins + self.draws + self.losses


@dataclass(frozen=True)
class Ratings:
    """Ratings in Elo points around a mean of zero, with percentile bootstrap intervals over games."""

    ratings: dict[str, tuple[float, Interval]]
    first_mover: tuple[float, Interval] | None
    """Points that moving first is worth; None if sides were not swapped, so that it cannot be told from strength."""
    draw: float
    """Probability of a draw between equal operators when nobody has the advantage of moving first."""


def win_matrix(games: Games, confidence: float = CONFIDENCE) -> dict[tuple[str, str], Meeting]:
    """For each two operators that met, in both orders: their games."""
    totals: dict[tuple[str, str], Array] = {}
    for (first, second), counts in games.counts.items():
        for key, found in (((first, second), counts), ((second, first), counts[::-1])):
            totals[key] = totals.get(key, np.zeros(3)) + np.array(found)
    return {key: _meeting(found, confidence) for key, found in totals.items() if found.sum()}


def _meeting(counts: Array, confidence: float) -> Meeting:
    from scipy.special import ndtri  # noqa: PLC0415 - takes a moment to import

    wins, draws, losses = (int(each) for each in counts)
    games = wins + draws + losses
    points = (wins + draws / 2) / games
    z = float(ndtri((1 + confidence) / 2)) ** 2 / games
    half = math.sqrt(z * (points * (1 - points) + z / 4))
    interval = (max(0.0, (points + z / 2 - half) / (1 + z)), min(1.0, (points + z / 2 + half) / (1 + z)))
    return Meeting(wins, draws, losses, points, interval)


def rate(games: Games, confidence: float = CONFIDENCE) -> Ratings:
    """Fit the model, and again to resamples of the games of each lineup."""
    operators = games.operators
    cells = {pair: np.array(counts) for pair, counts in games.counts.items() if sum(counts)}
    design = _design(list(cells), operators)
    counts = np.stack(list(cells.values())).astype(np.float64)
    swapped = np.linalg.matrix_rank(design[:, :-1]) > np.linalg.matrix_rank(design[:, :-2])
    if not swapped:
        design[:, -2] = 0.0
    generator = np.random.default_rng(0)
    drawn = np.stack([generator.multinomial(int(row.sum()), row / row.sum(), _RESAMPLES) for row in counts], axis=1)
    point = _fit(counts[None], design)
    fitted = np.concatenate([point, _fit(drawn.astype(np.float64), design, start=point[0])])
    strengths, advantage, draw = fitted[:, :-2], fitted[:, -2] * ELO, fitted[0, -1]
    strengths = (strengths - strengths.mean(1, keepdims=True)) * ELO
    ratings = {
        name: (float(column[0]), percentile_interval(column[1:], confidence))
        for name, column in zip(operators, strengths.T, strict=True)
    }
    first_mover = (float(advantage[0]), percentile_interval(advantage[1:], confidence)) if swapped else None
    return Ratings(ratings, first_mover, float(math.exp(draw) / (2 + math.exp(draw))))


def _design(pairs: list[tuple[str, str]], operators: list[str]) -> Array:
    """How half of a, the log-odds above, depends on the parameters: ratings, advantage, draw term; a row per pair."""
    place = {name: number for number, name in enumerate(operators)}
    design = np.zeros((len(pairs), len(operators) + 2))
    for row, (first, second) in zip(design, pairs, strict=True):
        row[place[first]] += 0.5
        row[place[second]] -= 0.5
        row[-2] = 0.5
    return design


def _fit(counts: Array, design: Array, start: Array | None = None) -> Array:
    """Newton's method on the penalised likelihood, which is concave, for many tables of counts at once."""
    tables, (pairs, size) = len(counts), design.shape
    draw = np.eye(size)[-1]
    # The curvature is a weighted sum of these, so that one product of matrices gives it for all tables.
    crossed = np.einsum("cp,q->cpq", design, draw)
    squares = np.concatenate(
        [
            np.einsum("cp,cq->cpq", design, design),
            crossed + crossed.swapaxes(1, 2),
            np.broadcast_to(np.outer(draw, draw), (pairs, size, size)),
        ]
    ).reshape(3 * pairs, size * size)
    penalty = np.eye(size) / _PRIOR**2
    games = counts.sum(-1)
    found = np.tile(np.zeros(size) if start is None else start, (tables, 1))
    for _ in range(_STEPS):
        half, tie = found @ design.T, np.broadcast_to(found[:, -1:], games.shape)
        logits = np.stack([half, tie, -half], axis=-1)
        shares = np.exp(logits - logits.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        left = counts - games[..., None] * shares
        gradient = (left[..., 0] - left[..., 2]) @ design + left[..., 1].sum(1, keepdims=True) * draw
        gradient -= found / _PRIOR**2
        win, drawn, loss = np.moveaxis(shares, -1, 0)
        weights = [win + loss - (win - loss) ** 2, -(win - loss) * drawn, drawn * (1 - drawn)]
        curvature = np.concatenate([games * each for each in weights], axis=1) @ squares
        step = np.linalg.solve(curvature.reshape(tables, size, size) + penalty, gradient[..., None])[..., 0]
        longest = np.abs(step).max(-1, keepdims=True)
        found += step * np.minimum(1.0, _LARGEST_STEP / np.maximum(longest, _LARGEST_STEP))
        if longest.max() < _TOLERANCE:
            break
    return found
