"""Evaluation of models from our ppo and from upstream scripts: seeds, batches, summaries, videos."""

import os
import statistics
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CHECKOUT = os.environ.get("MOSAIC_CLEANRL_CHECKOUT", "")
NEEDS_CHECKOUT = pytest.mark.skipif(not CHECKOUT, reason="MOSAIC_CLEANRL_CHECKOUT names no checkout of CleanRL")


def evaluate(worker, path, seed=100, **extras):
    return worker.run(seed=seed, extras={"mode": "policy_eval", "policy_path": path, **extras})


def by_seed(events):
    return {event["seed"]: (event["return"], event["length"]) for event in events["episode"]}


def test_episode_i_has_seed_plus_i_for_every_batch_size(cleanrl, trained):
    batched = evaluate(cleanrl, trained, eval_episodes=20, eval_num_envs=8)
    one_by_one = evaluate(cleanrl, trained, eval_episodes=20, eval_num_envs=1)
    run_folder = str(Path(trained).parents[1])
    shard = evaluate(cleanrl, run_folder, seed=105, eval_episodes=5, eval_num_envs=3)
    assert list(by_seed(one_by_one)) == list(range(100, 120))
    assert by_seed(batched) == by_seed(one_by_one)
    assert by_seed(shard) == {seed: by_seed(batched)[seed] for seed in range(105, 110)}
    assert len(set(by_seed(batched).values())) > 1


def test_the_summary_matches_the_episodes(cleanrl, trained):
    events = evaluate(cleanrl, trained, eval_episodes=15, eval_gamma=0.9)
    returns = [event["return"] for event in events["episode"]]
    summary = events["run_completed"][0]["summary"]
    assert summary["episodes"] == 15
    assert summary["return_mean"] == pytest.approx(statistics.fmean(returns))
    assert summary["return_std"] == pytest.approx(statistics.pstdev(returns))
    assert (summary["return_min"], summary["return_max"]) == (min(returns), max(returns))
    assert summary["return_median"] == statistics.median(returns)
    assert summary["steps"] == sum(event["length"] for event in events["episode"])
    for event in events["episode"]:
        expected = sum(0.9**step for step in range(event["length"]))
        assert event["info"]["discounted_return"] == pytest.approx(expected)
    assert summary["discounted_return_mean"] == pytest.approx(10, rel=0.01), "1 for each step, for a long time"
    assert summary["env_id"] == "CartPole-v1"


def test_repeats_play_the_same_episodes_and_samples_differ_between_them(cleanrl, trained):
    greedy = evaluate(cleanrl, trained, eval_episodes=4, eval_repeat=2)["episode"]
    assert sorted(event["episode"] for event in greedy) == list(range(8))
    first, second = ([event for event in greedy if event["info"]["repeat"] == n] for n in (0, 1))
    assert by_seed({"episode": first}) == by_seed({"episode": second})
    runs = [evaluate(cleanrl, trained, eval_episodes=4, eval_repeat=2, deterministic=False) for _ in range(2)]
    sampled = [[(event["episode"], event["return"]) for event in run["episode"]] for run in runs]
    assert sampled[0] == sampled[1], "the same seed, the same samples"
    first, second = ([event for event in runs[0]["episode"] if event["info"]["repeat"] == n] for n in (0, 1))
    assert by_seed({"episode": first}) != by_seed({"episode": second})


def test_it_says_which_model_of_a_folder_it_took(cleanrl, tmp_path):
    schedule = {"checkpoint_every": 1, "algo_params": {"num_envs": 1, "num_steps": 9}}
    cleanrl.run(algo="ppo", env_id="CartPole-v1", total_timesteps=18, seed=1, extras=schedule)
    for attempt, step in (("1", 18), ("2", 9), ("10", 9), ("10", 18)):
        (tmp_path / "runs" / attempt / "checkpoints").mkdir(parents=True, exist_ok=True)
        name = f"checkpoints/step-{step}.cleanrl_model"
        (tmp_path / "runs" / attempt / name).write_bytes((tmp_path / name).read_bytes())
    # The file and the folder with the latest modification times do not hold the newest checkpoint.
    os.utime(tmp_path / "runs/10/checkpoints/step-9.cleanrl_model", (2e9, 2e9))
    os.utime(tmp_path / "runs/2/checkpoints", (2e9, 2e9))
    taken = str(tmp_path / "runs/10/checkpoints/step-18.cleanrl_model")
    events = evaluate(cleanrl, str(tmp_path / "runs"), eval_episodes=1)
    assert [(event["path"], event["trained_steps"]) for event in events["checkpoint_loaded"]] == [(taken, 18)]
    assert events["run_started"][0]["task"] == f"evaluation of {taken}"
    assert events["run_completed"][0]["step"] == events["episode"][0]["length"], "its own steps, not the training's"
    extras = {"mode": "resume_training", "policy_path": str(tmp_path / "runs")}
    events = cleanrl.run(algo="ppo", total_timesteps=9, extras=extras)
    assert [(event["path"], event["step"]) for event in events["checkpoint_loaded"]] == [(taken, 18)]
    assert events["run_started"][0]["task"] == f"ppo on CartPole-v1, from step 18 of {taken}"
    assert events["run_started"][0]["seed"] == 1, "that of the checkpoint"


def test_videos_of_the_best_and_the_worst_episode(cleanrl, trained, tmp_path):
    events = evaluate(cleanrl, trained, eval_episodes=12, capture_video=True, fastlane_slot=3)
    videos = {event["info"]["why"]: event for event in events["artifact"] if event["kind"] == "video"}
    returns = [event["return"] for event in events["episode"]]
    assert len(set(returns)) > 3
    assert videos["best"]["info"]["return"] == max(returns)
    assert videos["worst"]["info"]["return"] == min(returns)
    assert b"acTL" in (tmp_path / videos["best"]["path"]).read_bytes()


def test_what_cannot_be_evaluated_is_refused(cleanrl, trained):
    extras = {"mode": "policy_eval", "policy_path": trained}
    said = cleanrl.refusals(
        {"env_id": "Acrobot-v1", "extras": extras},
        {"env_id": "CartPol-v1", "extras": extras},
        {"algo": "dqn", "extras": extras},
        {"extras": {**extras, "policy_path": "nowhere"}},
    )
    assert "the agent was trained with Box" in said[0]
    assert "Acrobot-v1 has Box" in said[0]
    assert "did you mean 'CartPole-v1'" in said[1]
    assert "was saved by ppo, but algo is dqn" in said[2]
    assert said[3] == "extras.policy_path: 'nowhere': no such file"


def test_a_model_of_a_script_needs_its_name_and_a_checkout(cleanrl, tmp_path):
    cleanrl.python_says(
        "import torch\ntorch.save({'network.0.weight': torch.zeros(2, 2)}, 'dqn.cleanrl_model')\nprint(0)"
    )
    extras = {"mode": "policy_eval", "policy_path": str(tmp_path / "dqn.cleanrl_model")}
    whole = {"algo": "dqn", "env_id": "CartPole-v1", "extras": extras}
    nameless, homeless, without = cleanrl.refusals({"extras": extras}, {"algo": "dqn", "extras": extras}, whole)
    assert "give its name as algo: dqn, dqn_atari, c51" in nameless
    assert "env_id: missing" in homeless
    assert "a model of dqn needs a checkout of CleanRL, and there is none" in without
    cleanrl.environ["MOSAIC_UPSTREAM"] = str(tmp_path)
    assert "has no cleanrl/dqn.py" in cleanrl.refusals(whole)[0]


def trained_by_script(worker, algo, env_id, *arguments):
    """Train with an upstream script, as a user would; return the path of the saved model."""
    worker.environ["PYTHONPATH"] += f":{CHECKOUT}"
    command = [worker.python, f"{CHECKOUT}/cleanrl/{algo}.py", "--env-id", env_id, "--save-model", "--seed", "1"]
    done = subprocess.run(
        [*command, "--no-cuda", *map(str, arguments)],
        cwd=worker.folder,
        env=worker.environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    (path,) = worker.folder.glob(f"runs/*/{algo}.cleanrl_model")
    worker.environ["MOSAIC_UPSTREAM"] = CHECKOUT
    return str(path)


PENDULUM_SPACES = {
    "observation_space": {"type": "Box", "low": -8, "high": 8, "shape": [3], "dtype": "float32"},
    "action_space": {"type": "Box", "low": -2, "high": 2, "shape": [1], "dtype": "float32"},
}
NORMALIZING = """
import gymnasium as gym, numpy as np, torch
class Args:
    gamma = 0.99
def make_env(env_id, idx, capture_video, run_name, gamma):
    def thunk():
        env = gym.wrappers.NormalizeObservation(gym.make(env_id))
        return gym.wrappers.TransformObservation(env, lambda obs: np.clip(obs, -10, 10))
    return thunk
class Agent(torch.nn.Module):
    def __init__(self, envs):
        super().__init__()
        self.actor_mean = torch.nn.Linear(3, 1)
        self.actor_logstd = torch.nn.Parameter(torch.zeros(1, 1))
"""


@pytest.fixture
def normalizing(cleanrl, tmp_path):
    """The config and the path of a model whose script normalises observations but does not save the statistics."""
    (tmp_path / "upstream" / "cleanrl").mkdir(parents=True)
    (tmp_path / "upstream" / "cleanrl" / "ppo_continuous_action.py").write_text(NORMALIZING)
    cleanrl.environ["MOSAIC_UPSTREAM"] = str(tmp_path / "upstream")
    weights = "{'actor_mean.weight': torch.tensor([[0.5, -2.0, -1.0]]), 'actor_mean.bias': torch.zeros(1), "
    weights += "'actor_logstd': torch.full((1, 1), -1.0)}"
    cleanrl.python_says(f"import torch\ntorch.save({weights}, 'it.cleanrl_model')\nprint(0)")
    return {"algo": "ppo_continuous_action", "env_id": "Pendulum-v1"}, str(tmp_path / "it.cleanrl_model")


def require_same_returns_in_all_batches(worker, config, path):
    runs = []
    for seed, episodes, batch in ((100, 6, 1), (100, 6, 4), (103, 3, 3)):
        extras = {"mode": "policy_eval", "policy_path": path, "eval_episodes": episodes, "eval_num_envs": batch}
        runs.append(worker.run(**config, seed=seed, extras=extras))
    one_by_one, batched, shard = map(by_seed, runs)
    assert sorted(one_by_one) == list(range(100, 106))
    assert batched == one_by_one
    assert shard == {seed: one_by_one[seed] for seed in (103, 104, 105)}
    assert len({value for value, _ in one_by_one.values()}) == 6
    (said,) = [event["message"] for event in runs[0]["log"] if event["level"] == "warning"]
    assert "they were estimated anew, over 20 episodes with the model" in said


def test_statistics_that_a_script_did_not_save_are_estimated_once_for_all_environments(cleanrl, normalizing):
    config, path = normalizing
    require_same_returns_in_all_batches(cleanrl, config, path)
    reset, extras = {"cmd": "reset", "seed": 5}, {"mode": "interactive", "policy_path": path}
    first, _, again, guest = cleanrl.talk(
        reset, {"cmd": "step"}, reset, {"cmd": "init_agent", **PENDULUM_SPACES}, **config, extras=extras
    )
    assert first == again, "what was played in between changes nothing"
    assert "observations that its own environment normalises" in guest["message"]


def test_a_model_of_ppo_continuous_action_can_be_sampled(cleanrl, normalizing):
    config, path = normalizing
    extras = {"mode": "policy_eval", "policy_path": path, "eval_episodes": 3}
    greedy = by_seed(cleanrl.run(**config, seed=100, extras=extras))
    samples = [
        by_seed(cleanrl.run(**config, seed=100, extras={**extras, "deterministic": False, "eval_num_envs": batch}))
        for batch in (1, 3)
    ]
    assert samples[0] == samples[1]
    assert all(samples[0][seed] != greedy[seed] for seed in greedy)


@NEEDS_CHECKOUT
def test_a_model_saved_by_dqn_acts_as_in_dqn(cleanrl):
    steps = ("--total-timesteps", 12_000, "--learning-starts", 1000, "--learning-rate", 1e-3)
    path = trained_by_script(cleanrl, "dqn", "CartPole-v1", *steps)
    extras = {"mode": "policy_eval", "policy_path": path, "eval_episodes": 20}
    events = cleanrl.run(algo="dqn", env_id="CartPole-v1", seed=100, extras=extras)
    assert sorted(event["seed"] for event in events["episode"]) == list(range(100, 120))
    assert all(event["return"] == event["length"] for event in events["episode"])
    # Play one episode with the same network, without the worker.
    code = f"""
import json, sys
sys.path.insert(0, {CHECKOUT!r})
import gymnasium, torch
from cleanrl.dqn import QNetwork, make_env
vector = gymnasium.vector.SyncVectorEnv([make_env("CartPole-v1", 0, 0, False, "x")])
network = QNetwork(vector)
network.load_state_dict(torch.load({path!r}, weights_only=True))
env = gymnasium.make("CartPole-v1")
view, _ = env.reset(seed=100)
total, over = 0.0, False
while not over:
    view, reward, terminated, truncated, _ = env.step(int(network(torch.as_tensor(view)[None]).argmax()))
    total, over = total + reward, terminated or truncated
print(json.dumps(total))
"""
    assert {event["seed"]: event["return"] for event in events["episode"]}[100] == cleanrl.python_says(code)
    answers = cleanrl.talk(
        {"cmd": "reset", "seed": 100},
        {"cmd": "step"},
        algo="dqn",
        env_id="CartPole-v1",
        extras={"policy_path": path, "mode": "interactive"},
    )
    assert [answer["type"] for answer in answers] == ["reset", "step"]
    sampled = {"algo": "dqn", "env_id": "CartPole-v1", "extras": {**extras, "deterministic": False}}
    other, continuous, undecided = cleanrl.refusals(
        *({"algo": "dqn", "env_id": name, "extras": extras} for name in ("Acrobot-v1", "Pendulum-v1")), sampled
    )
    assert undecided.startswith("extras.deterministic: False is not allowed: a model of dqn gives one action")
    assert "is no model of dqn on Acrobot-v1" in other
    assert "dqn needs a discrete action space; Pendulum-v1 has Box(-2.0, 2.0, (1,))" in continuous


@NEEDS_CHECKOUT
@pytest.mark.parametrize(
    ("algo", "env_id", "arguments"),
    [
        ("c51", "CartPole-v1", ("--total-timesteps", 600, "--learning-starts", 200, "--n-atoms", 51)),
        ("ddpg_continuous_action", "Pendulum-v1", ("--total-timesteps", 600, "--learning-starts", 400)),
        ("td3_continuous_action", "Pendulum-v1", ("--total-timesteps", 600, "--learning-starts", 400)),
        (
            "ppo_continuous_action",
            "Pendulum-v1",
            ("--total-timesteps", 600, "--num-steps", 200, "--num-minibatches", 4),
        ),
    ],
)
def test_models_of_other_scripts_act(cleanrl, algo, env_id, arguments):
    path = trained_by_script(cleanrl, algo, env_id, *arguments)
    extras = {"mode": "policy_eval", "policy_path": path, "eval_episodes": 3}
    events = cleanrl.run(algo=algo, env_id=env_id, seed=7, extras=extras)
    assert sorted(event["seed"] for event in events["episode"]) == [7, 8, 9]
    if env_id == "Pendulum-v1":
        assert {event["length"] for event in events["episode"]} == {200}
        assert all(-2000 < event["return"] < 0 for event in events["episode"]), "raw rewards, not normalised ones"
    assert Path(path).name == f"{algo}.cleanrl_model"
    if algo == "ppo_continuous_action":
        require_same_returns_in_all_batches(cleanrl, {"algo": algo, "env_id": env_id}, path)
