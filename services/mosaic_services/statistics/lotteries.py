"""Who is best when results are cyclic (a beats b, b beats c, c beats a): maximal lottery and alpha-rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Array = npt.NDArray[np.float64]

__all__ = ["alpha_rank", "cycles", "maximal_lottery"]

# Size of the population of alpha-rank; a tied strategy takes over with probability one in so many.
_POPULATION = 50
# Probability that a worse strategy takes over: makes every strategy reachable.
_MUTATION = 1e-6


def cycles(points: Array) -> list[list[int]]:
    """Groups of three and more players that beat each other in a circle; `points[i, j]` is i's share against j.

    Players that never met have NaN, which beats nobody.
    """
    from scipy.sparse.csgraph import connected_components  # noqa: PLC0415 - takes a moment to import

    count, labels = connected_components(np.nan_to_num(points) > 0.5, connection="strong")  # noqa: PLR2004 - a half
    groups = [np.flatnonzero(labels == label).tolist() for label in range(count)]
    return [group for group in groups if len(group) > 2]  # noqa: PLR2004 - two cannot beat each other


def maximal_lottery(points: Array) -> Array:
    """The mix of players that no player and no mix beats on average (Fishburn, 1984): an equilibrium of the margins."""
    from scipy.optimize import linprog  # noqa: PLC0415 - takes a moment to import

    margins = np.nan_to_num(points - points.T)
    size = len(points)
    # Maximise v, such that the mix has at least the margin v against every player.
    solved = linprog(
        c=[*[0.0] * size, -1.0],
        A_ub=np.hstack([-margins.T, np.ones((size, 1))]),
        b_ub=np.zeros(size),
        A_eq=[[*[1.0] * size, 0.0]],
        b_eq=[1.0],
        bounds=[*[(0.0, 1.0)] * size, (None, None)],
    )
    return _shares(solved.x[:size])


def alpha_rank(points: Array) -> Array:
    """Share of time that evolution spends with each player (Omidshafiei et al., 2019), under strong selection.

    A population that plays one strategy is taken over by a random other one for sure if that one beats it, never
    (almost) if it loses to it, and by chance if they tie.
    """
    size = len(points)
    if size == 1:
        return np.ones(1)
    margins = np.nan_to_num(points - points.T)  # row against column
    invades = np.where(margins.T > 0, 1.0, np.where(margins.T == 0, 1 / _POPULATION, _MUTATION))
    moves = invades / (size - 1)
    np.fill_diagonal(moves, 0.0)
    np.fill_diagonal(moves, 1 - moves.sum(1))
    system = np.vstack([moves.T - np.eye(size), np.ones(size)])
    share = np.linalg.lstsq(system, np.append(np.zeros(size), 1.0), rcond=None)[0]
    return _shares(share)


def _shares(values: Array) -> Array:
    found: Array = np.clip(values, 0, None)
    found /= found.sum()
    return found
