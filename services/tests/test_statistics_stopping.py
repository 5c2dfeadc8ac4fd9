"""The stopping rule: its looks, what it plays next, and how often it is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest

from mosaic_services.statistics.episodes import decide
from mosaic_services.statistics.stopping import Claim, Decision, Rule, comparisons, look, means

if TYPE_CHECKING:
    from collections.abc import Callable

    Sampler = Callable[[np.random.Generator, int], np.ndarray]


def play_out(full: dict[str, np.ndarray], claims: list[Claim], rule: Rule) -> tuple[Decision, dict[str, int]]:
    """Play what the rule asks for until it stops."""
    have = dict.fromkeys(full, 0)
    while not (decision := look({name: full[name][: have[name]] for name in full}, claims, rule)).stop:
        assert decision.play
        assert all(have[name] < upto <= rule.cap for name, upto in decision.play.items())
        have |= decision.play
    return decision, have


def test_looks_double_and_end_at_the_cap():
    assert Rule(decided=True).looks == (50, 100, 200, 400, 800, 1600, 3200)
    assert Rule(decided=True, cap=500).looks == (50, 100, 200, 400, 500)
    assert Rule(decided=True, cap=50).looks == (50,)
    assert Rule(decided=True).level(3) == pytest.approx(1 - 0.05 / 21)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({}, "either"),
        ({"width": 1.0, "decided": True}, "either"),
        ({"width": 0.0}, "width: 0"),
        ({"width": float("nan")}, "nan"),
        ({"decided": True, "cap": 20}, "cap: 20"),
    ],
)
def test_rule_with_bad_values_is_refused(values, named):
    with pytest.raises(ValueError, match=named):
        Rule(**values)


def test_scores_after_the_last_look_change_nothing():
    generator = np.random.default_rng(1)
    full = {name: generator.normal(0, 1, 199) for name in "ab"}
    claims = comparisons(["a", "b"])
    at_the_look = look({name: values[:100] for name, values in full.items()}, claims, Rule(decided=True))
    assert look(full, claims, Rule(decided=True)) == at_the_look
    assert at_the_look.play == {"a": 200, "b": 200}


def test_every_lineup_first_reaches_the_first_look():
    decision = look({"a": np.ones(60), "b": np.ones(3)}, means(["a", "b"]), Rule(width=1.0))
    assert (decision.stop, decision.play) == (False, {"b": 50})


def test_next_block_goes_to_the_least_certain_comparison():
    generator = np.random.default_rng(2)
    full = {"good": generator.normal(1.0, 1, 50), "fair": generator.normal(0.9, 1, 50), "bad": np.zeros(50)}
    assert look(full, comparisons(list(full)), Rule(decided=True)).play == {"good": 100, "fair": 100}
    wide = {"calm": generator.normal(0, 1, 50), "wild": generator.normal(0, 9, 50)}
    assert look(wide, means(list(wide)), Rule(width=0.1)).play == {"wild": 100}


def test_equal_agents_end_at_the_cap_and_the_words_name_what_is_open():
    same = np.random.default_rng(3).normal(0, 1, 400)
    decision, have = play_out({"a": same, "b": same}, comparisons(["a", "b"]), Rule(decided=True, cap=400))
    assert (decision.reason, have) == ("cap", {"a": 400, "b": 400})
    assert "cap of 400" in decision.words
    assert "a - b" in decision.words


def test_equal_scores_are_no_proof_of_a_narrow_interval():
    """An agent that fails in one of a hundred episodes shows fifty perfect ones more often than not."""
    scores = {"perfect": np.full(50, 500.0), "random": np.random.default_rng(4).uniform(9, 60, 50)}
    decision = look(scores, means(list(scores)), Rule(width=30))
    low, high = decision.findings[0].interval
    assert (low < 470, high) == (True, 500)
    assert not decision.stop


def test_duels_are_decided_over_both_sides():
    def game(lineup, episode, winner):
        returns = {"white": 1.0 if winner == "white" else -1.0, "black": 1.0 if winner == "black" else -1.0}
        return {"lineup": lineup, "episode": episode, "returns": returns, "winners": [winner]}

    lineups = {"a-b": {"white": "a", "black": "b"}, "b-a": {"white": "b", "black": "a"}}
    white_wins = [game(name, number, "white") for name in lineups for number in range(50)]
    assert decide(white_wins, lineups, Rule(decided=True)).play == {"a-b": 100, "b-a": 100}
    a_wins = [game(name, number, "white" if name == "a-b" else "black") for name in lineups for number in range(50)]
    decision = decide(reversed(a_wins), lineups, Rule(decided=True))
    assert decision.reason == "decided"
    assert decision.findings[0].mean == 0.5
    gap = [record for record in a_wins if record["episode"] != 7]
    assert decide(gap, lineups, Rule(decided=True)).play == {"a-b": 50, "b-a": 50}


def test_operator_that_refuses_the_game_does_not_keep_the_others_playing():
    def record(lineup, episode, returns):
        return {"lineup": lineup, "episode": episode, "returns": returns, "winners": None}

    lineups = {name: {"*": name} for name in ("good", "bad", "refusing")}
    records = [record("refusing", number, {}) for number in range(50)]
    assert decide(records, {"refusing": lineups["refusing"]}, Rule(decided=True)).stop
    records += [record(name, number, {"agent": 1.0 * (name == "good")}) for name in lineups for number in range(50)][
        :100
    ]
    decision = decide(records, lineups, Rule(decided=True))
    assert (decision.reason, [each.name for each in decision.findings]) == ("decided", ["good - bad"])


@dataclass(frozen=True)
class Shape:
    """A kind of returns, with its mean, one that is truly worse, and a width that needs some looks."""

    name: str
    draw: Sampler
    mean: float
    worse: Sampler
    worse_mean: float
    width: float


def saturated(share: float) -> Sampler:
    return lambda generator, n: np.where(generator.random(n) < share, 20.0, 500.0)


def random_agent(generator, n):
    return 9 + generator.exponential(13, n)


SHAPES = [
    Shape("normal", lambda g, n: g.normal(0, 1, n), 0, lambda g, n: g.normal(-0.5, 1, n), -0.5, 0.4),
    Shape("skewed", lambda g, n: g.lognormal(0, 0.7, n), np.exp(0.245), lambda g, n: g.normal(0.5, 1, n), 0.5, 0.4),
    Shape("saturated", saturated(0.1), 452, random_agent, 22, 60),
    Shape("rarely failing", saturated(0.03), 485.6, random_agent, 22, 40),
    Shape("won or lost", lambda g, n: (g.random(n) < 0.9) * 1.0, 0.9, lambda g, n: (g.random(n) < 0.6) * 1.0, 0.6, 0.1),
]


def test_in_500_experiments_intervals_cover_and_equal_agents_have_no_winner():
    """Two equal agents and a worse one. Half of the experiments stop by width, half when decided."""
    generator = np.random.default_rng(20)
    covered, false_winners, worse_found, asked = [], [], [], 0
    for number in range(500):
        shape = SHAPES[number % len(SHAPES)]
        by_width = number // len(SHAPES) % 2 == 0
        samplers = {"one": shape.draw, "same": shape.draw, "worse": shape.worse}
        truth = {"one": shape.mean, "same": shape.mean, "worse": shape.worse_mean}
        full = {name: draw(generator, 3200) for name, draw in samplers.items()}
        names = list(full)
        claims = means(names) if by_width else comparisons(names)
        decision, have = play_out(full, claims, Rule(width=shape.width) if by_width else Rule(decided=True))
        asked += sum(have.values())
        for claim, finding in zip(claims, decision.findings, strict=True):
            low, high = finding.interval
            covered.append(low <= sum(weight * truth[name] for name, weight in claim.weights.items()) <= high)
        if not by_width:
            settled = {finding.name: finding.settled_at for finding in decision.findings}
            false_winners.append(settled["one - same"] is not None)
            worse_found += [settled["one - worse"] is not None, settled["same - worse"] is not None]
    print(f"coverage {np.mean(covered):.3f}, false winners {np.mean(false_winners):.3f}, {asked:,} episodes")
    assert np.mean(covered) >= 0.93
    assert np.mean(false_winners) <= 0.05
    # A rule that never decides would be right as well.
    assert np.mean(worse_found) >= 0.95
    assert asked < 500 * 3 * 3200 * 0.6
