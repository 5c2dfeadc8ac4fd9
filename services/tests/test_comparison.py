"""Folding seeds, scores and mean curves: pure."""

import math

import numpy as np
import pytest

from mosaic_bus.messages import Resources, RunSpec
from mosaic_services.comparison.folding import fold
from mosaic_services.statistics.curves import mean_curve
from mosaic_services.statistics.scores import score


def spec(**config) -> RunSpec:
    return RunSpec(worker="w", config=config)


def test_runs_that_differ_in_their_seed_alone_are_one_setting():
    specs = {f"{algo}{seed}": spec(algo=algo, seed=seed, extras={"lr": 0.1}) for algo in "ab" for seed in (1, 2)}
    specs["b2"] = specs["b2"].model_copy(update={"priority": 5, "resources": Resources(cpus=2), "name": "other"})
    assert [(each.label, each.runs) for each in fold(specs)] == [("algo=a", ["a1", "a2"]), ("algo=b", ["b1", "b2"])]


def test_by_folds_everything_but_the_key_and_takes_the_end_of_a_path():
    specs = {f"{lr}{algo}": spec(algo=algo, extras={"lr": lr}) for algo in "ab" for lr in (0.1, 0.2)}
    assert [(each.values, each.runs) for each in fold(specs, ["lr"])] == [
        ({"config.extras.lr": 0.1}, ["0.1a", "0.1b"]),
        ({"config.extras.lr": 0.2}, ["0.2a", "0.2b"]),
    ]
    with pytest.raises(KeyError, match="nope"):
        fold(specs, ["nope"])


def test_settings_with_too_many_values_to_read_are_called_like_their_runs():
    specs = {"1": spec(**{f"parameter_{n}": n for n in range(9)}), "2": spec(seed=1), "3": spec(seed=2)}
    names = {"1": "tuned", "2": "plain-seed1", "3": "plain-seed2"}
    assert [each.label for each in fold(specs, names=names)] == ["tuned", "plain"]
    alike = {"1": "same", "2": "same-seed1", "3": "same-seed2"}
    assert fold(specs, names=alike)[0].label.startswith("parameter_0=0 ")


def test_single_setting_is_named_after_its_worker():
    assert [each.label for each in fold({"1": spec(seed=1), "2": spec(seed=2)})] == ["w"]


def test_score_has_mean_iqm_and_intervals():
    found = score([1.0, 2.0, 3.0, 4.0, 100.0])
    assert (found.n, found.mean, found.iqm, found.median) == (5, 22.0, 3.0, 3.0)
    half = 2.7764451 * math.sqrt(np.var([1, 2, 3, 4, 100], ddof=1) / 5)
    assert found.mean_interval == pytest.approx((22 - half, 22 + half))
    low, high = found.iqm_interval
    assert 1 <= low < 3 < high <= 100
    assert score([1.0, 2.0, 3.0, 4.0, 100.0]) == found


def test_one_seed_has_no_interval():
    found = score([7.0])
    assert (found.n, found.mean, found.iqm, found.mean_interval, found.iqm_interval) == (1, 7.0, 7.0, None, None)


def test_curves_are_averaged_over_those_that_have_come_that_far():
    curve = mean_curve([([0, 10], [0.0, 10.0]), ([0, 20], [0.0, 40.0]), ([], [])], points=21)
    assert curve.steps.tolist() == list(range(21))
    assert curve.mean[10] == pytest.approx(15.0)
    assert curve.mean[20] == curve.low[20] == curve.high[20] == 40.0
    assert curve.low[10] < 15.0 < curve.high[10]


def test_no_curve_of_nothing():
    assert mean_curve([([], []), ([1], [None])]) is None
