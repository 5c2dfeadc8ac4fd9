"""Scores, comparisons, ratings and lotteries, on data whose answers are known."""

from __future__ import annotations

import numpy as np
import pytest

from mosaic_services.statistics.aggregates import iqm, optimality_gap, probability_of_improvement, profile
from mosaic_services.statistics.episodes import read_play
from mosaic_services.statistics.lotteries import alpha_rank, cycles, maximal_lottery
from mosaic_services.statistics.pairs import improvement, paired_difference
from mosaic_services.statistics.ratings import ELO, Games, rate, win_matrix
from mosaic_services.statistics.resampling import (
    bootstrap,
    draws,
    nested_bootstrap,
    percentile_interval,
    share_interval,
)
from mosaic_services.statistics.scores import algorithm_score, score


def test_aggregates_of_known_scores():
    scores = np.array([1.0, 2.0, 3.0, 100.0])
    assert iqm(scores) == 2.5
    assert optimality_gap(scores, 3.0) == pytest.approx(0.75)
    assert profile(scores, np.array([0.0, 2.0, 99.0, 100.0])).tolist() == [1, 0.5, 0.25, 0]
    assert probability_of_improvement(np.array([1.0, 2.0]), np.array([1.0, 0.0])) == pytest.approx(0.875)


def test_bootstrap_keeps_strata_apart():
    low, high = np.zeros(5), np.full(7, 10.0)
    found = bootstrap([low, high], lambda rows: rows.mean(-1), draws([5, 7], np.random.default_rng(0), 50))
    assert found == pytest.approx(np.full(50, 70 / 12))


def test_interval_over_training_seeds_is_wider_when_seeds_differ():
    generator = np.random.default_rng(0)
    alike = generator.normal(0, 1, (8, 200))
    apart = alike + generator.normal(0, 3, (8, 1))
    widths = [np.subtract(*algorithm_score(list(seeds)).iqm_nested) for seeds in (apart, alike)]
    assert widths[0] < 5 * widths[1] < 0
    one = algorithm_score([alike[0]])
    assert (one.seeds, one.mean_interval, one.mean_nested, one.iqm_nested) == (1, None, None, None)


def test_nested_bootstrap_has_the_spread_of_both_levels():
    """Variance of the mean: that of seeds, and that of episodes, once in the data and once in the resampling."""
    generator = np.random.default_rng(1)
    seeds = generator.normal(0, 2, (40, 1)) + generator.normal(0, 1, (40, 25))
    found = nested_bootstrap(seeds, lambda rows: rows.mean(-1), np.random.default_rng(0), 4000)
    expected = seeds.mean(1).var() / 40 + seeds.var(1).mean() / seeds.size
    assert found.var() == pytest.approx(expected, rel=0.1)


def test_paired_difference_uses_that_episodes_are_shared():
    generator = np.random.default_rng(2)
    hard = generator.normal(0, 10, 100)
    found = paired_difference(hard + 1 + generator.normal(0, 0.1, 100), hard)
    assert found.interval == pytest.approx((1, 1), abs=0.05)
    assert (found.better, found.equal) == (1.0, 0.0)


def test_interval_of_improvement_is_that_of_resampling_both_sides():
    generator = np.random.default_rng(3)
    x, y = generator.normal(0.5, 1, 40), np.round(generator.normal(0, 1, 60), 1)

    def statistic(rows):
        return probability_of_improvement(rows[:, :40], rows[:, 40:])

    plain = percentile_interval(bootstrap([x, y], statistic, draws([40, 60], np.random.default_rng(9), 4000)))
    assert improvement(x, y).interval == pytest.approx(plain, abs=0.015)


def test_interval_of_improvement_is_the_same_for_few_and_many_scores():
    """501 scores take the normal approximation, 500 the bootstrap."""
    generator = np.random.default_rng(4)
    x, y = generator.normal(0.3, 1, 501), generator.normal(0, 1, 501)
    assert improvement(x, y).interval == pytest.approx(improvement(x[:500], y[:500]).interval, abs=0.01)
    assert improvement(x + 100, y).interval == (1.0, 1.0)


def test_scores_have_intervals_of_the_level_that_is_asked_for():
    values = np.random.default_rng(5).normal(0, 1, 200)
    usual, strict = score(values, target=1.0), score(values, 0.999, target=1.0)
    for name in ("mean_interval", "iqm_interval", "median_interval", "gap_interval"):
        (low, high), (lower, higher) = getattr(usual, name), getattr(strict, name)
        assert lower < low < high < higher
    assert usual.gap == pytest.approx(1 - np.minimum(values, 1).mean())


def test_interval_of_a_share_is_that_of_resampling():
    scores = (np.arange(60) < 7) * 1.0
    found = bootstrap([scores], lambda rows: rows.mean(-1), draws([60], np.random.default_rng(1), 20_000))
    lows, highs = share_interval(np.array([7 / 60, 0.0, 1.0]), 60)
    assert (lows[0], highs[0]) == pytest.approx(percentile_interval(found), abs=1e-9)
    assert (lows[1:].tolist(), highs[1:].tolist()) == ([0, 1], [0, 1])


def play(strengths, first_mover, draw, games, seed=0):
    """Games of a round robin, both sides, drawn from the model."""
    generator = np.random.default_rng(seed)
    counts = {}
    for one, mine in strengths.items():
        for other, yours in strengths.items():
            if one != other:
                odds = np.exp(np.array([0.5, 0, -0.5]) * (mine - yours + first_mover) + [0, draw, 0])
                counts[one, other] = tuple(generator.multinomial(games, odds / odds.sum()).tolist())
    return Games(counts)


def test_ratings_find_the_strengths_that_games_were_drawn_from():
    truth = {"a": 1.0, "b": 0.2, "c": -1.2}
    held = []
    for seed in range(25):
        found = rate(play(truth, first_mover=0.6, draw=-0.3, games=200, seed=seed))
        assert found.draw == pytest.approx(np.exp(-0.3) / (2 + np.exp(-0.3)), abs=0.06)
        named = [(found.ratings[name], strength) for name, strength in truth.items()]
        for (rating, (low, high)), strength in [*named, (found.first_mover, 0.6)]:
            assert low < rating < high
            held.append(low < strength * ELO < high)
    assert np.mean(held) >= 0.88  # of intervals of 95 %, in 100 cases


def test_without_swapped_sides_there_is_no_first_mover_advantage():
    found = rate(Games({("a", "b"): (16, 0, 4), ("b", "c"): (14, 2, 4)}))
    assert found.first_mover is None
    assert found.ratings["a"][0] > found.ratings["b"][0] > found.ratings["c"][0]
    assert rate(Games({("a", "b"): (16, 0, 4), ("b", "c"): (14, 2, 4), ("c", "a"): (8, 0, 12)})).first_mover is not None


def test_whoever_wins_every_game_has_a_finite_rating():
    found = rate(Games({("a", "b"): (50, 0, 0), ("b", "a"): (0, 0, 50)}))
    rating, (low, high) = found.ratings["a"]
    assert np.isfinite([rating, low, high]).all()
    assert rating > 400


def test_win_matrix_counts_both_sides():
    found = win_matrix(Games({("a", "b"): (6, 2, 2), ("b", "a"): (1, 0, 9)}))
    assert (found["a", "b"].wins, found["a", "b"].draws, found["a", "b"].losses) == (15, 2, 3)
    assert found["a", "b"].points == pytest.approx(0.8)
    assert found["b", "a"].points == pytest.approx(0.2)
    low, high = found["a", "b"].interval
    assert 0.5 < low < 0.8 < high < 1
    assert win_matrix(Games({("a", "b"): (9, 0, 0)}))["a", "b"].interval[0] < 0.9


def test_cyclic_results_have_a_mixed_winner():
    rock = np.array([[0.5, 0.8, 0.2, 0.9], [0.2, 0.5, 0.8, 0.9], [0.8, 0.2, 0.5, 0.9], [0.1, 0.1, 0.1, 0.5]])
    assert cycles(rock) == [[0, 1, 2]]
    assert maximal_lottery(rock) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0], abs=1e-6)
    assert alpha_rank(rock) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0], abs=1e-4)
    ordered = np.array([[0.5, 0.6, 0.7], [0.4, 0.5, 0.6], [0.3, 0.4, 0.5]])
    assert cycles(ordered) == []
    assert maximal_lottery(ordered) == pytest.approx([1, 0, 0], abs=1e-6)
    assert alpha_rank(ordered) == pytest.approx([1, 0, 0], abs=1e-4)
    unplayed = np.where(np.eye(3, dtype=bool) | (ordered > 0.65) | (ordered < 0.35), np.nan, ordered)
    assert cycles(unplayed) == []
    margins = np.nan_to_num(unplayed - unplayed.T)
    assert (maximal_lottery(unplayed) @ margins >= -1e-9).all()


def test_records_become_scores_and_points():
    def record(episode, winners, first, second):
        return {"lineup": "a-b", "episode": episode, "winners": winners, "returns": {"w": first, "b": second}}

    records = [record(2, None, 3, 1), record(0, ["b"], 0, 0), record(1, [], 5, 1), record(4, ["w"], 0, 0)]
    found = read_play(records, {"a-b": {"w": "a", "b": "b"}})["a-b"]
    assert (found.competitive, found.complete) == (True, 3)
    assert found.points.tolist() == [0, 0.5, 1, 1]
    team = read_play([{**each, "winners": None} for each in records], {"a-b": {"*": "a"}})["a-b"]
    assert (team.competitive, team.scores.tolist()) == (False, [0, 6, 4, 0])
    mixed = read_play([{**each, "winners": None} for each in records], {"a-b": {"w": "a", "b": "b"}})["a-b"]
    assert (mixed.competitive, mixed.scores.tolist()) == (False, [0, 6, 4, 0]), (
        "nobody can win: a team of two operators"
    )
    with pytest.raises(KeyError, match="other"):
        read_play([{**records[0], "lineup": "other"}], {"a-b": {"*": "a"}})
