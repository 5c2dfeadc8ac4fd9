"""Sweep files: which runs they stand for, and what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from mosaic_bus.messages import RunSpec
from mosaic_services.specs import SpecError, make_spec, parse_word, read_file
from mosaic_services.sweeps import new_group, read_plan
from mosaic_services.sweeps.naming import labels, name_runs

FILE = Path("configs/sweeps/s.yaml")


def plan(sweep: object, *words: str, **base: object):
    return read_plan({"worker": "baseline", **base, "sweep": sweep}, list(words), FILE)


def configs(sweep: object, *words: str, **base: object) -> list[dict]:
    return [each.spec.config for each in plan(sweep, *words, **base).expand("g")]


def test_parts_of_a_sweep_are_multiplied_in_order():
    found = configs({"list": [{"a": 1}, {"a": 2, "b": 1}], "grid": {"c": [1, 2], "config.d.e": ["x"]}, "seeds": 2})
    assert len(found) == 2 * 2 * 1 * 2
    assert found[0] == {"a": 1, "c": 1, "d": {"e": "x"}, "seed": 1}
    assert found[1] == {"a": 1, "c": 1, "d": {"e": "x"}, "seed": 2}
    assert found[-1] == {"a": 2, "b": 1, "c": 2, "d": {"e": "x"}, "seed": 2}


def test_values_reach_fields_beside_the_config_and_leave_the_base_alone():
    base = {"env_kwargs": {"g": 9.8, "m": 1}}
    sweep = plan({"grid": {"resources.cpus": [1, 2], "env_kwargs.g": [3.7]}}, config=base, priority=5)
    specs = [each.spec for each in sweep.expand("group-x")]
    assert [each.resources.cpus for each in specs] == [1, 2]
    assert all(each.config == {"env_kwargs": {"g": 3.7, "m": 1}} and each.priority == 5 for each in specs)
    assert {each.group for each in specs} == {"group-x"}
    assert base == {"env_kwargs": {"g": 9.8, "m": 1}}


def test_the_same_file_and_seed_give_the_same_runs_and_another_seed_gives_others():
    sweep = {
        "random": {
            "lr": {"loguniform": [1e-5, 1e-1]},
            "gamma": {"uniform": [0.9, 0.999]},
            "layers": {"int": [1, 3]},
            "agent": {"choice": ["random", "passive"]},
        },
        "samples": 200,
    }
    first = configs(sweep)
    assert first == configs(sweep)
    assert first != configs({**sweep, "seed": 1})
    assert all(1e-5 <= each["lr"] <= 1e-1 and 0.9 <= each["gamma"] <= 0.999 for each in first)
    assert {each["layers"] for each in first} == {1, 2, 3}
    assert {each["agent"] for each in first} == {"random", "passive"}
    assert sum(each["lr"] < 1e-3 for each in first) > 60  # half of them, were it not by chance


def test_samples_never_repeat_although_the_space_is_small():
    found = configs({"random": {"a": {"int": [1, 4]}, "b": {"choice": [True, False]}}, "samples": 8})
    assert len({(each["a"], each["b"]) for each in found}) == 8


def test_a_sweep_of_a_million_is_counted_and_refused_without_being_made():
    with pytest.raises(SpecError) as caught:
        plan({"grid": {"lr": list(range(100)), "gamma": list(range(100))}, "seeds": 100})
    said = "1,000,000 runs (lr 100 × gamma 100 × seeds 100) are too many: at most 20,000"
    assert said in caught.value.message
    with pytest.raises(SpecError, match=r"1,000,000,000,000 runs"):  # to make them would take for ever
        plan({"seeds": 10**12})
    with pytest.raises(SpecError, match="100,000,000 trials"):
        plan({"random": {"a": {"int": [1, 9]}}, "driver": "optuna", "trials": 10**8})


def test_as_many_runs_as_allowed_are_made_with_names_of_their_own():
    found = plan({"grid": {"lr": [each / 1000 for each in range(1, 101)]}, "seeds": 200}).expand("g")
    names = {each.spec.name for each in found}
    assert len(found) == len(names) == 20_000
    assert max(map(len, names)) <= 60


@pytest.mark.parametrize(
    ("sweep", "said", "hint"),
    [
        ({"gird": {"lr": [1]}}, "sweep: field 'gird' is unknown", "did you mean grid?"),
        ({}, "sweep: nothing varies", "list, grid, random, seeds"),
        ([], "sweep: [] is not a map", "mosaic submit"),
        ({"grid": {}}, "sweep.grid: {} is not a map of keys", ""),
        ({"grid": {"lr": []}}, "sweep.grid.lr: the list is empty", "leave the key out"),
        ({"grid": {"lr": 0.1}}, "sweep.grid.lr: 0.1 is not a list", "write [0.1]"),
        ({"grid": {"lr": [0.1, 0.2, 0.1]}}, "sweep.grid.lr: 0.1 is given twice", "seeds"),
        ({"grid": {"lr": [1, 1.0]}}, "sweep.grid.lr: 1.0 is given twice", ""),
        ({"grid": {"resources.cpu": [1]}}, "sweep.grid: resources: field 'cpu' is unknown", "did you mean cpus?"),
        ({"grid": {"name": ["a"]}}, "sweep.grid: name cannot vary", ""),
        ({"grid": {"lr": [1], "config.lr": [2]}}, "config.lr is given twice", "are the same"),
        ({"grid": {"a..b": [1]}}, "'a..b' is not a key", ""),
        ({"list": []}, "sweep.list: [] is not a list of maps", ""),
        ({"list": [3]}, "sweep.list: 3 is not a map", ""),
        ({"list": [{"a": 1}, {"a": 1}]}, "is given twice", ""),
        ({"random": {"lr": {"uniform": [0, 1]}}}, "sweep.random: how many samples?", "samples: N"),
        ({"samples": 3, "seeds": 2}, "there is no random to sample from", ""),
        ({"random": {"lr": {"lognormal": [0, 1]}}, "samples": 1}, "lr: distribution 'lognormal' is unknown", ""),
        ({"random": {"lr": 0.1}, "samples": 1}, "sweep.random.lr: 0.1 is not a distribution", "loguniform"),
        ({"random": {"lr": {"uniform": [1, 0]}}, "samples": 1}, "lr: uniform: low 1 is above high 0", "[0, 1]"),
        ({"random": {"lr": {"uniform": [0, "a"]}}, "samples": 1}, 'uniform: [0, "a"] is not [low, high]', ""),
        ({"random": {"lr": {"int": [0, 1.5]}}, "samples": 1}, "two whole numbers", ""),
        ({"random": {"lr": {"loguniform": [0, 1]}}, "samples": 1}, "loguniform: low 0 is not above 0", "uniform"),
        ({"random": {"lr": {"choice": []}}, "samples": 1}, "choice: [] is not a list of values", ""),
        ({"random": {"lr": {"choice": [1, 2]}}, "samples": 3}, "only 2 different combinations", "fewer"),
        (
            {"random": {"lr": {"uniform": [0, 1]}}, "samples": 0},
            "sweep.samples: 0 is not a whole number of at least 1",
            "",
        ),
        ({"seeds": 0}, "sweep.seeds: 0 is not a whole number", ""),
        ({"seeds": [1, 1]}, "sweep.seeds: 1 is given twice", ""),
        ({"seeds": "many"}, 'sweep.seeds: "many" is neither', "seeds: 5"),
        ({"seeds": 2, "grid": {"seed": [1]}}, "seed is in sweep.grid and in sweep.seeds", "keep one"),
        ({"seeds": 2, "trials": 3}, "sweep.trials needs a driver", "driver: optuna"),
        ({"driver": "hyperopt"}, 'sweep.driver: "hyperopt" is unknown', "optuna"),
        ({"driver": "optuna", "trials": 3}, "there is nothing to search", "random:"),
        ({"driver": "optuna", "trials": 3, "grid": {"a": [1]}}, "sweep.grid and a driver exclude each other", ""),
        ({"driver": "optuna", "random": {"a": {"int": [1, 2]}}}, "how many trials?", "trials: N"),
        (
            {"driver": "optuna", "trials": 2, "random": {"a": {"int": [1, 2]}}, "direction": "up"},
            'sweep.direction: "up" is unknown',
            "maximize",
        ),
    ],
)
def test_what_is_wrong_is_refused_with_file_key_value_and_what_is_allowed(sweep, said, hint):
    with pytest.raises(SpecError) as caught:
        plan(sweep)
    assert said in caught.value.message
    assert hint in caught.value.hint
    assert str(FILE) in caught.value.message or "is not a key" in said


def test_a_wrong_value_of_one_run_names_the_run_and_what_was_chosen():
    with pytest.raises(SpecError) as caught:
        plan({"grid": {"resources.cpus": [1, -3]}}, name="s").expand("g")
    assert "run s-cpus-3 (resources.cpus=-3)" in caught.value.message


def test_range_of_a_few_floats_ends():
    with pytest.raises(SpecError, match="gave only 1 different combinations"):
        plan({"random": {"a": {"uniform": [1.0, 1.0000000001]}}, "samples": 3}).expand("g")


def test_words_change_the_base_and_the_sweep_but_not_what_varies():
    sweep = {"grid": {"config.lr": [1, 2]}, "seeds": 2}
    assert {each["episodes"] for each in configs(sweep, "episodes=7")} == {7}
    assert len(configs(sweep, "sweep.seeds=5")) == 10
    assert [each["lr"] for each in configs(sweep, "sweep.grid.config.lr=[3]", "sweep.seeds=1")] == [3]
    with pytest.raises(SpecError, match=r"lr=… is given, but sweep.grid of .* varies it"):
        plan(sweep, "lr=3")
    with pytest.raises(SpecError, match="seeds"):
        plan(sweep, "seed=3")


def test_a_run_file_is_no_sweep():
    with pytest.raises(SpecError) as caught:
        read_plan({"worker": "baseline"}, [], FILE)
    assert "mosaic submit" in caught.value.hint


def test_names_say_what_varies():
    chosen = [{"config.lr": 0.001, "config.seed": 3}, {"config.lr": 0.001, "config.seed": 4}]
    assert name_runs("s", chosen) == ["s-lr0.001-seed3", "s-lr0.001-seed4"]
    assert name_runs("s", [{"config.env_id": "CartPole-v1", "config.norm": False}]) == ["s-CartPole-v1-no-norm"]
    assert name_runs("s", [{"config.layers": [64, 64]}, {"config.layers": [64, 32]}]) == [
        "s-layers64x64",
        "s-layers64x32",
    ]


def test_names_are_unique_although_values_look_alike():
    alike = [{"config.a": "x/y"}, {"config.a": "x y"}, {"config.a": "x-y-2"}, {"config.b": {"k": 1}}]
    assert len(set(name_runs("s", alike))) == 4
    long = [{"config.text": "t" * 90, "config.n": n, "config.more": "m" * 90} for n in range(20)]
    names = name_runs("s" * 40, long)
    assert len(set(names)) == 20
    assert max(map(len, names)) <= 60


def test_labels_are_the_shortest_that_tell_keys_apart():
    paths = ["config.lr", "config.actor.width", "config.critic.width", "resources.cpus"]
    assert labels(paths) == {
        "config.lr": "lr",
        "config.actor.width": "actor.width",
        "config.critic.width": "critic.width",
        "resources.cpus": "cpus",
    }


def test_name_of_the_sweep_and_its_group():
    assert plan({"seeds": 1}).name == "s"
    assert plan({"seeds": 1}, name="base").name == "base"
    assert plan({"seeds": 1, "name": "mine"}, name="base").name == "mine"
    assert new_group("my sweep / größe", "4K7QXB") == "my-sweep-gr-e-4k7qxb"
    RunSpec(worker="baseline", group=new_group("x" * 300, "4K7QXB"))


def test_numbers_with_an_exponent_are_numbers(tmp_path):
    path = tmp_path / "s.yaml"
    path.write_text("worker: baseline\nconfig: {lr: 1e-3, big: 2E6, text: 1e-3x, version: '1e-3'}\n")
    assert read_file(path)["config"] == {"lr": 0.001, "big": 2e6, "text": "1e-3x", "version": "1e-3"}
    assert parse_word("lr=3e-4") == (["config", "lr"], 0.0003)


def test_fields_of_a_run_on_the_command_line():
    words = ["priority=5", "after=train", "requires=[gpu]", "limits.wall_s=60", "retries.max=2", "retries.on=[137]"]
    spec = make_spec({"worker": "baseline"}, words, "here")
    assert (spec.priority, spec.after, spec.requires) == (5, ("train",), ("gpu",))
    assert (spec.limits.wall_s, spec.retries.max, spec.retries.on) == (60, 2, (137,))
    for word, said, hint in (
        ("limits.wall=60", "limits: field 'wall' is unknown", "wall_s"),
        ("retries.maximum=2", "retries: field 'maximum' is unknown", "max"),
        ("retries.max=1000", "retries.max", ""),
        ("requires=[GPU]", "requires", ""),
    ):
        with pytest.raises(SpecError) as caught:
            make_spec({"worker": "baseline"}, [word], "here")
        assert said in caught.value.message
        assert hint in caught.value.hint
