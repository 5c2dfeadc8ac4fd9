"""The arena through a real stack: policies of several libraries, by reference, the same games however they are cut."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from mosaic_cli import Cli
from stack import Stack, wait_until

from mosaic_bus.commands import ShowExperiment, StartExperiment
from mosaic_services.environments import build, recipe_for
from mosaic_services.home import StackHome

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

ROOM = {"cpus": 1, "memory_mb": 1024}
DEADLINE_S = 900
WORKERS = ("arena", "baseline", "cleanrl", "xuance", "ray")
LIBRARIES = {
    "cleanrl": {"worker": "cleanrl", "checkpoint": "run:cart@last"},
    "xuance": {"worker": "xuance", "checkpoint": "run:cart-dqn@last"},
    "ray": {"worker": "ray", "checkpoint": "run:cart-rllib@last"},
}
RLLIB = {
    "algorithm": "PPO",
    "num_workers": 0,
    "num_envs_per_worker": 8,
    "total_timesteps": 2000,
    "network": {"fcnet_hiddens": [32, 32], "fcnet_activation": "tanh"},
    "algo_params": {"lr": 0.001, "train_batch_size_per_learner": 1000, "minibatch_size": 250, "num_epochs": 4},
}
TRAININGS: dict[str, dict[str, Any]] = {
    "cart": {"worker": "cleanrl", "config": {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 4096}},
    "grid": {"worker": "cleanrl", "config": {"algo": "ppo", "env_id": "MiniGrid-Empty-5x5-v0", "total_timesteps": 512}},
    "pendulum": {
        "worker": "xuance",
        "config": {"algorithm": "PPO", "env_id": "Pendulum-v1", "running_steps": 600, "parallels": 2},
    },
    "push": {
        "worker": "xuance",
        "config": {
            "algorithm": "IPPO",
            "env": "mpe",
            "env_id": "simple_push_v3",
            "overrides": {"continuous_action": False},  # RLlib's policy of the same game has discrete ones.
            "running_steps": 2000,
            "parallels": 4,
        },
    },
    "push-rllib": {
        "worker": "ray",
        "config": {**RLLIB, "env_id": "simple_push_v3", "policy_configuration": "INDEPENDENT"},
    },
    "cart-rllib": {"worker": "ray", "config": {**RLLIB, "env_id": "CartPole-v1"}},
    "cart-dqn": {
        "worker": "xuance",
        "config": {"algorithm": "DQN", "env_id": "CartPole-v1", "running_steps": 1000, "parallels": 2},
    },
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Iterator[Stack]:
    """A stack in which policies of three libraries have been trained for a moment."""
    home = StackHome.find(tmp_path_factory.mktemp("build"))
    for worker in WORKERS:
        build(recipe_for(worker, home), "default", lambda _step, _percent: None)
    # Two at a time: on a busy machine Ray does not start beside six others.
    with Stack(tmp_path_factory.mktemp("arena") / "home", cpus=2, environ={"MOSAIC_WORKERS": ""}) as stack:
        runs = [
            stack.submit(
                name=name,
                worker=spec["worker"],
                config={**spec["config"], "seed": 1},
                resources={**ROOM, "memory_mb": 2048},
            )
            for name, spec in TRAININGS.items()
        ]
        for run in runs:
            state = stack.wait_final(run, DEADLINE_S)
            assert state.state == "succeeded", state.reason
        yield stack
    assert stack.leftovers() == []


def uses(*workers: str) -> list[dict[str, str]]:
    return [{"worker": worker} for worker in workers]


def play(
    stack: Stack, env_id: str, operators: dict[str, Any], *, episodes: tuple[int, int] = (0, 6), **more: Any
) -> str:
    """Submit a shard in which each operator plays alone, unless there are lineups."""
    lineups = more.pop("lineups", {name: {"*": name} for name in operators})
    spec = more.pop("spec", {})
    workers = sorted({each["worker"] for each in operators.values()} - {"random", "noop"})
    config = {
        "environment": {"id": env_id, **more.pop("environment", {})},
        "operators": operators,
        "lineups": [{"name": name, "agents": agents} for name, agents in lineups.items()],
        "play": [{"lineup": name, "episodes": list(episodes)} for name in lineups],
        **more,
    }
    return stack.submit(worker="arena", uses=uses(*workers), config=config, resources=ROOM, **spec)


def records(stack: Stack, *runs: str) -> list[dict[str, Any]]:
    """What is pure in the records of ended shards, from their journals, sorted."""
    found = []
    for run in runs:
        state = stack.wait_final(run, DEADLINE_S)
        assert state.state == "succeeded", state.reason
        for line in stack.journal(run).read_text().splitlines():
            event = json.loads(line)
            if event["event"] == "episode":
                found.append({name: event[name] for name in event if name not in {"timing", "ts", "step"}})
    return sorted(found, key=lambda record: (record["lineup"], record["episode"]))


def test_a_policy_a_random_and_a_passive_agent_are_played_by_reference(trained):
    operators = {
        "ppo": {"worker": "cleanrl", "checkpoint": "run:cart@last"},
        "random": {"worker": "baseline", "config": {"behavior": "random"}},
        "passive": {"worker": "baseline", "config": {"behavior": "passive"}},
    }
    run = play(trained, "CartPole-v1", operators, episodes=(0, 10))
    found = records(trained, run)
    mean = {name: sum(record["return"] for record in found if record["lineup"] == name) / 10 for name in operators}
    assert mean["ppo"] > mean["random"] > mean["passive"]
    assert trained.wait_stored(run).episodes == 30


@pytest.mark.parametrize(
    ("env_id", "operator", "family"),
    [
        ("CartPole-v1", {"worker": "cleanrl", "checkpoint": "run:cart@last"}, "an MLP"),
        ("MiniGrid-Empty-5x5-v0", {"worker": "cleanrl", "checkpoint": "run:grid@last"}, "a CNN"),
        ("Pendulum-v1", {"worker": "xuance", "checkpoint": "run:pendulum@last"}, "a continuous policy"),
    ],
    ids=["mlp", "cnn", "continuous"],
)
def test_the_games_are_the_same_in_one_lane_in_several_and_in_shards(trained, env_id, operator, family):
    options = {"environment": {"max_steps": 60}}
    whole = play(trained, env_id, {"p": operator}, lanes=1, **options)
    several = play(trained, env_id, {"p": operator}, lanes=6, **options)
    shards = [play(trained, env_id, {"p": operator}, episodes=part, lanes=2, **options) for part in ((0, 1), (1, 6))]
    expected = records(trained, whole)
    assert len(expected) == 6
    assert len({record["action_hash"] for record in expected}) > 1 or family == "a CNN"
    assert records(trained, several) == expected
    assert records(trained, *shards) == expected


def evaluate(stack: Stack, name: str, **fields: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Play an experiment to its end; return its records and its experiment.json."""
    document = {"name": name, "environment": {"id": "CartPole-v1"}, **fields}
    stack.bus.request("operator", StartExperiment(experiment=document, shards=1), timeout=60)

    def ended() -> Any:
        found = stack.bus.request("operator", ShowExperiment(experiment=name), timeout=60)
        return found if found.state.final else None

    state = wait_until(f"{name} ends", ended, DEADLINE_S)
    assert state.state == "finished", state.reason
    folder = stack.home.experiments / name
    lines = (folder / "episodes.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines], json.loads((folder / "experiment.json").read_text())


def test_one_experiment_has_a_policy_of_every_library_a_random_and_a_passive_agent(trained):
    baselines = {name: {"worker": "baseline", "config": {"behavior": name}} for name in ("random", "passive")}
    found, _ = evaluate(trained, "all", operators={**LIBRARIES, **baselines}, episodes=3)
    assert {record["lineup"]: record["failures"] for record in found} == {name: [] for name in (*LIBRARIES, *baselines)}
    assert len(found) == 15
    seeds = {name: [each["env_seed"] for each in found if each["lineup"] == name] for name in LIBRARIES}
    assert len({tuple(each) for each in seeds.values()}) == 1


def test_two_libraries_play_against_each_other_on_both_sides_and_are_rated(trained):
    operators = {
        "ippo": {"worker": "xuance", "checkpoint": "run:push@last"},
        "ppo": {"worker": "ray", "checkpoint": "run:push-rllib@last"},
    }
    game = {"id": "simple_push_v3", "family": "parallel", "agents": ["adversary_0", "agent_0"]}
    found, _ = evaluate(trained, "push", environment=game, operators=operators, lineups="pairs", episodes=4)
    assert {record["lineup"] for record in found} == {"ippo-vs-ppo", "ppo-vs-ippo"}
    assert [(record["ended"], record["failures"]) for record in found] == [("truncated", [])] * 8
    assert all(set(record["numerics"]) == {"ippo", "ppo", "environment"} for record in found)
    assert len({record["action_hash"] for record in found}) > 1
    for record in found:
        ahead = max(record["returns"], key=record["returns"].get)
        assert record["winners"] == [ahead]
    shard = {"operators": operators, "lineups": {"ippo-vs-ppo": {"adversary_0": "ippo", "agent_0": "ppo"}}}
    alone = play(trained, "simple_push_v3", **shard, lanes=1, environment={"family": "parallel"}, episodes=(0, 4))
    together = play(trained, "simple_push_v3", **shard, lanes=3, environment={"family": "parallel"}, episodes=(0, 4))
    assert records(trained, alone) == records(trained, together)

    report = json.loads(Cli(trained.home.path)("report", "push", "--json").stdout)["report"]
    assert "Head to head" in Path(report).read_text()
    games = json.loads((Path(report).parent / "summary.json").read_text())["games"]
    assert games["ratings"]["ratings"].keys() == {"ippo", "ppo"}


def test_a_checkpoint_of_another_library_is_named_and_the_rest_goes_on(trained):
    operators = {
        "dqn-in-cleanrl": {"worker": "cleanrl", "checkpoint": "run:cart-dqn@last"},
        "ppo-in-xuance": {"worker": "xuance", "checkpoint": "run:cart@last"},
        "random": {"worker": "random"},
    }
    found, _ = evaluate(trained, "foreign", operators=operators, episodes=2)
    ended = {record["lineup"]: record["ended"] for record in found}
    assert ended == {"dqn-in-cleanrl": "failed", "ppo-in-xuance": "failed", "random": "terminated"}
    ordered = sorted(found, key=lambda record: record["lineup"])
    told = [failure for record in ordered for failure in record["failures"]]
    assert [(failure["kind"], failure["operator"]) for failure in told] == [
        *[("refused", "dqn-in-cleanrl")] * 2,
        *[("refused", "ppo-in-xuance")] * 2,
    ]
    assert "no .cleanrl_model file" in told[0]["message"]
    assert "not a checkpoint of the xuance worker" in told[-1]["message"]


def test_each_library_is_judged_in_the_versions_that_it_was_trained_with(trained, tmp_path):
    home = StackHome.find(tmp_path)
    played = {}
    for library, operator in LIBRARIES.items():
        build(recipe_for("arena", home), library, lambda _step, _percent: None)
        fields = {"environment": {"id": "CartPole-v1", "profile": library}, "operators": {"policy": operator}}
        found, about = evaluate(trained, f"in-{library}", **fields, episodes=2)
        assert [record["failures"] for record in found] == [[], []]
        (host,) = about["provenance"]["hosts"].values()
        played[library] = host["environments"]["arena"]["versions"]["gymnasium"]
    assert played == {"cleanrl": "0.29.1", "xuance": "1.2.3", "ray": "1.2.2"}


def test_a_policy_whose_spaces_do_not_fit_is_named_and_the_rest_goes_on(trained):
    operators = {"ppo": {"worker": "cleanrl", "checkpoint": "run:cart@last"}, "own": {"worker": "random"}}
    found = records(trained, play(trained, "Acrobot-v1", operators, episodes=(0, 2), environment={"max_steps": 20}))
    assert [(record["lineup"], record["ended"]) for record in found] == [
        *[("own", "max_steps")] * 2,
        *[("ppo", "failed")] * 2,
    ]
    (failure,) = found[-1]["failures"]
    assert (failure["kind"], failure["operator"]) == ("refused", "ppo")
    assert "was trained with" in failure["message"]


def wait_for_episodes(stack: Stack, run: str) -> None:
    def has_begun() -> bool:
        journal = stack.journal(run)
        return journal.exists() and journal.read_bytes().count(b'"event":"episode"') > 10

    wait_until("the shard plays", has_begun)


def test_a_shard_outlives_its_supervisor_and_a_killed_one_goes_on_where_it_was(tmp_path):
    home = StackHome.find(tmp_path / "build")
    for worker in ("arena", "baseline"):
        build(recipe_for(worker, home), "default", lambda _step, _percent: None)
    with Stack(tmp_path / "home", environ={"MOSAIC_WORKERS": ""}) as stack:
        many = {"operators": {"random": {"worker": "baseline"}}, "episodes": (0, 400), "lanes": 4}
        expected = records(stack, play(stack, "CartPole-v1", **many))

        run = play(stack, "CartPole-v1", **many)
        wait_for_episodes(stack, run)
        stack.kill_and_restart("supervisor")
        stack.wait_for("supervisor")
        assert records(stack, run) == expected

        again = {"max": 1, "on": ["infrastructure", "application"], "delay_s": 0}
        run = play(stack, "CartPole-v1", **many, spec={"retries": again})
        wait_for_episodes(stack, run)
        mark = str(stack.journal(run).parent / "worker.json")
        (worker,) = [each for each in psutil.process_iter(["cmdline"]) if mark in (each.info["cmdline"] or [])]
        worker.kill()
        state = stack.wait_final(run, DEADLINE_S)
        assert (state.state, state.attempt) == ("succeeded", 2), state.reason
        first, second = (len(stack.journal(run, attempt).read_text().split('"event":"episode"')) for attempt in (1, 2))
        kept = [json.loads(line) for line in (stack.journal(run, 2).parent / "episodes.jsonl").read_text().splitlines()]
        hashes = {record["episode"]: record["action_hash"] for record in kept}
        assert hashes == {record["episode"]: record["action_hash"] for record in expected}
        assert len(kept) == len(expected)
        assert second < len(expected) < first + second, "only what was missing was played again"
    assert stack.leftovers() == []
