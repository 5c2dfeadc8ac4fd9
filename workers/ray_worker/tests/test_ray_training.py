"""Training with RLlib: every algorithm from start to restart, and the four policy configurations by their weights."""

import json
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

HERE = f"import json, sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\nfrom trainings import *\n"
ON_POLICY = {"train_batch_size_per_learner": 100, "minibatch_size": 50, "num_epochs": 1}
OFF_POLICY = {"num_steps_sampled_before_learning_starts": 100, "train_batch_size_per_learner": 8}
REPORTS = {"min_time_s_per_iteration": 0, "min_sample_timesteps_per_iteration": 60}

SIX = (
    HERE
    + """
found = {}
with cluster():
    for name, given in json.loads(sys.argv[1]).items():
        before = begin(name, total_timesteps=200, **given)
        untrained = weights(before)
        trained = finish(before)
        after = go_on(name, 100)
        about = json.loads((Path.cwd() / name / trained[-1]["path"] / "mosaic.json").read_text())
        found[name] = {
            "trained": trained,
            "moved": untrained != weights(before),
            "restored": has_weights(after, name),
            "about": about,
        }
        found[name]["resumed"] = finish(after)

# The cluster has ended.
from ray_worker import EvaluationConfig, RayPolicyConfig, create_ray_actor, run_evaluation
for name, runs in found.items():
    actor = create_ray_actor(RayPolicyConfig(Path.cwd() / name, algorithm=name))
    runs["played"] = run_evaluation(EvaluationConfig(actor, num_episodes=2, max_steps=20)).summary()
print(json.dumps(found))
"""
)


def named(events, name):
    return [event for event in events if event["event"] == name]


def test_every_algorithm_trains_saves_restores_and_plays(rllib):
    cart = {"env_id": "CartPole-v1"}
    cases = {
        "PPO": {**cart, "algo_params": ON_POLICY},
        "A2C": {**cart, "algo_params": {"train_batch_size_per_learner": 100}},
        "IMPALA": {**cart, "algo_params": {"train_batch_size_per_learner": 100, "min_time_s_per_iteration": 0}},
        "APPO": {**cart, "algo_params": {"train_batch_size_per_learner": 100, "min_time_s_per_iteration": 0}},
        "DQN": {**cart, "algo_params": {**OFF_POLICY, **REPORTS}},
        "SAC": {"env_id": "Pendulum-v1", "algo_params": {**OFF_POLICY, **REPORTS}},
    }
    found = rllib.says(SIX, json.dumps({name: {"algorithm": name, **given} for name, given in cases.items()}))
    for name, runs in found.items():
        trained, resumed, about = runs["trained"], runs["resumed"], runs["about"]
        assert runs["moved"], f"{name}: training changes the weights"
        assert runs["restored"], f"{name}: a restored training has the saved weights"
        values = {key: value for event in named(trained, "scalars") for key, value in event["values"].items()}
        assert any("loss" in key for key in values), (name, values)
        assert values["steps_per_second"] > 0, name
        (saved,) = named(trained, "checkpoint_saved")
        assert about["step"] == saved["step"] >= 200, name
        assert (about["algorithm"], about["agents"]) == (name, {"default_agent": "default_policy"})
        (loaded,) = named(resumed, "checkpoint_loaded")
        assert loaded["step"] == saved["step"], name
        assert named(resumed, "checkpoint_saved")[-1]["step"] >= saved["step"] + 100, name
        episodes = named(trained, "episode")
        assert episodes, name
        if about["env_id"] == "CartPole-v1":  # which gives 1 for each step
            assert all(event["return"] == event["length"] for event in episodes), name
        assert [event["episode"] for event in episodes] == list(range(len(episodes))), name
        assert all(event["episode"] >= len(episodes) for event in named(resumed, "episode")), name
        is_told = any("replay memory is not restored" in event["message"] for event in named(resumed, "log"))
        assert is_told == (name in {"DQN", "SAC"}), name
        played = runs["played"]
        assert (played["episodes"], list(played["policies"])) == (2, ["default_agent"]), name
        assert 0 < played["length_mean"] <= 20, name


FOUR = (
    HERE
    + """
spread = {"env_id": "simple_spread_v3", "total_timesteps": 100, "algo_params": QUICK}
found = {}
with cluster():
    for kind in ("PARAMETER_SHARING", "INDEPENDENT", "SHARED_VALUE_FUNCTION"):
        training = begin(kind, policy_configuration=kind, **spread)
        before = weights(training)
        reported = finish(training)
        found[kind] = {"before": before, "after": weights(training), "agents": training._about().agents}
        found[kind]["returns"] = [event["returns"] for event in reported if event["event"] == "episode"]

    tag = begin("tag", **{**spread, "env_id": "simple_tag_v3"})
    found["roles"] = {"agents": tag._about().agents, "modules": sorted(weights(tag))}
    tag.close()

    # One critic, updated by the loss of each agent alone.
    training = begin("critic", policy_configuration="SHARED_VALUE_FUNCTION", **spread)
    learner = training.algorithm.learner_group._learner
    import torch
    critic = training.algorithm.learner_group._learner.module["central_critic"]
    gradients = {}
    for agent in training._about().agents:
        module = learner.module[agent].unwrapped()
        space = module.observation_space
        batch = {"obs": {name: torch.ones((2, *part.shape)) for name, part in space.spaces.items()}}
        critic.zero_grad()
        module.compute_values(batch).sum().backward()
        gradients[agent] = sum(float(each.grad.abs().sum()) for each in critic.parameters())
    found["critic"] = {"gradients": gradients, "actors": [name for name, _ in module.named_parameters()]}
    training.close()

    game = {"env_id": "tictactoe_v3", "policy_configuration": "SELF_PLAY", "total_timesteps": 400, "algo_params": QUICK}
    never = {"league_size": 2, "snapshot_games": 10_000}
    training = begin("self", **game, **never)
    before = weights(training)
    finish(training)
    restored = go_on("self", 100)
    found["self"] = {"before": before, "after": weights(training), "restored": weights(restored)}
    restored.close()

    # Eight iterations: env runners deliver as Ray likes, so no seed says which of them freezes a copy.
    often = {"total_timesteps": 800, "league_size": 2, "snapshot_games": 3, "snapshot_win_rate": 0.01}
    training = begin("league", **{**game, **often}, num_workers=1)
    training.run()
    (states,) = training.algorithm.env_runner_group.foreach_env_runner(
        lambda runner: runner.get_state("rl_module", inference_only=True)["rl_module"], local_env_runner=False
    )
    training.close()
    state = training.league.state
    found["league"] = {"events": events(training), "state": state, "weights": weights(training)}
    found["league"]["runner"] = numbers(states)
    found["league"]["about"] = training._about().league
print(json.dumps(found))
"""
)


def test_policy_configurations_by_their_weights(rllib):
    found = rllib.says(FOUR)

    shared = found["PARAMETER_SHARING"]
    assert list(shared["before"]) == ["shared"], "one set of weights"
    assert shared["agents"] == dict.fromkeys(("agent_0", "agent_1", "agent_2"), "shared")
    assert shared["before"] != shared["after"]
    assert shared["returns"][0].keys() == {"agent_0", "agent_1", "agent_2"}

    apart = found["INDEPENDENT"]
    assert apart["agents"] == {name: name for name in ("agent_0", "agent_1", "agent_2")}
    for when in ("before", "after"):
        sets = [json.dumps(apart[when][name]) for name in apart["agents"]]
        assert len(set(sets)) == 3, "each agent has weights of its own"
    assert all(apart["before"][name] != apart["after"][name] for name in apart["agents"]), "and each learns"

    assert found["roles"]["agents"]["agent_0"] == "agent"
    assert {found["roles"]["agents"][f"adversary_{n}"] for n in range(3)} == {"adversary"}
    assert found["roles"]["modules"] == ["adversary", "agent"]

    central = found["SHARED_VALUE_FUNCTION"]
    assert set(central["before"]) == {"agent_0", "agent_1", "agent_2", "central_critic"}
    assert all(central["before"][name] != central["after"][name] for name in central["before"]), "all of them learn"
    assert len({json.dumps(central["after"][name]) for name in central["agents"]}) == 3, "actors are apart"
    assert set(found["critic"]["gradients"]) == {"agent_0", "agent_1", "agent_2"}
    assert all(each > 0 for each in found["critic"]["gradients"].values()), "every agent's loss moves the one critic"
    assert not any("critic" in name or "vf" in name for name in found["critic"]["actors"]), "and no other"

    self_play = found["self"]
    assert self_play["before"]["main"] != self_play["after"]["main"], "the learner moves"
    for name in ("frozen_0", "frozen_1"):
        assert self_play["before"][name] == self_play["before"]["main"], "a copy of the untrained learner"
        assert self_play["after"][name] == self_play["before"][name], "bit by bit as it was frozen"
        assert self_play["restored"][name] == self_play["after"][name]
    assert self_play["restored"]["main"] == self_play["after"]["main"]

    league = found["league"]
    assert league["state"]["snapshots"] >= 2
    assert league["about"] == league["state"]
    assert all(0 < step < 1000 for step in league["state"]["steps"].values()), "both copies were replaced"
    assert league["weights"]["frozen_0"] != league["weights"]["frozen_1"], "at different steps"
    for name, own in league["runner"].items():  # without the critic, which does not act
        assert own, name
        assert own == {key: league["weights"][name][key] for key in own}, f"{name}: the env runner plays it, bit by bit"
    assert league["runner"].keys() == {"main", "frozen_0", "frozen_1"}
    rates = [
        event["values"]["win_rate"] for event in named(league["events"], "scalars") if "win_rate" in event["values"]
    ]
    assert rates
    assert all(0 <= rate <= 1 for rate in rates)


SEATS = """
import json
from types import SimpleNamespace
from ray_worker.policies import _seat
agents, games = ("a", "b", "c"), []
for number in range(3000):
    episode = SimpleNamespace(id_=f"1-0-0-0-{number}")
    games.append([_seat(agents, 4, 0.2, 1, agent, episode) for agent in agents])
print(json.dumps(games))
"""


def test_self_play_seats_one_learner_among_copies_or_itself_in_all_seats(rllib):
    games = rllib.says(SEATS)
    copies = {f"frozen_{number}" for number in range(4)}
    mirrors = [game for game in games if game == ["main"] * 3]
    assert len(mirrors) / len(games) == pytest.approx(0.2, abs=0.03)
    others = [game for game in games if game != ["main"] * 3]
    for game in others:
        assert game.count("main") == 1
        assert set(game) - {"main"} <= copies
    for seat in range(3):
        assert sum(game[seat] == "main" for game in others) / len(others) == pytest.approx(1 / 3, abs=0.05)
        assert {game[seat] for game in others} == copies | {"main"}, "any copy in any seat"


MANY = HERE + "print(json.dumps([refusal(given) for given in json.loads(sys.argv[1])]))\n"


def test_what_cannot_run_is_refused_with_the_reason(rllib):
    foreign = rllib.folder / "foreign"
    foreign.mkdir()
    (foreign / "mosaic.json").write_text('{"format": "mosaic-xuance", "version": 1}')
    empty = rllib.folder / "empty"
    empty.mkdir()
    (rllib.folder / "at_once.py").write_text("from mpe2.simple_spread_v3 import parallel_env\n")
    ppo = {"algorithm": "PPO", "env_id": "CartPole-v1", "total_timesteps": 100, "num_workers": 0}
    resume = {"mode": "resume_training", "total_timesteps": 10, "num_workers": 0}
    cases = [
        ({**ppo, "algorithm": "DQN", "env_id": "Pendulum-v1"}, "training.algorithm", "discrete"),
        ({**ppo, "family": "module", "env_id": "at_once", "api_type": "AEC"}, "environment.api_type", "PARALLEL"),
        ({**ppo, "env_id": "tictactoe_v3", "api_type": "PARALLEL"}, "environment.api_type", "AEC"),
        ({**ppo, "env_id": "tictactoe_v3", "algorithm": "SAC"}, "training.algorithm", "mask"),
        ({**ppo, "policy_configuration": "SELF_PLAY"}, "policy_configuration", "several agents"),
        ({**ppo, "env_id": "simple_tag_v3", "policy_configuration": "SELF_PLAY"}, "policy_configuration", "alike"),
        (
            {**ppo, "algorithm": "DQN", "env_id": "simple_spread_v3", "policy_configuration": "SHARED_VALUE_FUNCTION"},
            "policy_configuration",
            "critic",
        ),
        ({**ppo, "num_workers": 500}, "resources.num_workers", "500"),
        ({**ppo, "num_gpus": 99, "address": "127.0.0.1:1"}, "resources.num_gpus", "learner"),
        ({**ppo, "algo_params": {"clip_parm": 0.1}}, "training.algo_params.clip_parm", "clip_param"),
        ({**ppo, "algo_params": {"lr": "fast"}}, "training.algo_params.lr", "fast"),
        ({**ppo, "algorithm": "A2C", "algo_params": {"num_epochs": 3}}, "training.algo_params.num_epochs", "A2C"),
        ({**ppo, "algo_params": {"minibatch_size": 5000}}, "training: RLlib refuses it", "minibatch_size"),
        (ppo, "accepted", ""),
        ({**resume, "checkpoint_path": str(foreign)}, "checkpoint_path", "mosaic-xuance"),
        ({**resume, "checkpoint_path": str(empty)}, "checkpoint_path", "no checkpoint"),
        ({**resume, "checkpoint_path": "/nowhere"}, "checkpoint_path", "no such folder"),
    ]
    refusals = rllib.says(MANY, json.dumps([given for given, _, _ in cases]))
    for said, (given, field, word) in zip(refusals, cases, strict=True):
        assert said.startswith(field), (given, said)
        assert word in said, (given, said)
