"""Our ppo in its locked environment: reports, reproducibility, refusals and failures."""

import json

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

QUICK = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 2048, "seed": 1}
LOSSES = {
    "losses/policy_loss",
    "losses/value_loss",
    "losses/entropy",
    "losses/old_approx_kl",
    "losses/approx_kl",
    "losses/clipfrac",
    "losses/explained_variance",
    "charts/learning_rate",
    "charts/SPS",
}
NAN_ENV = """
import gymnasium
class Broken(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observation_space.low, {}
    def step(self, action):
        self.steps += 1
        reward = float("nan") if self.steps > 300 else 1.0
        return self.observation_space.low, reward, False, self.steps >= 1000, {}
gymnasium.register("Broken-v0", Broken)
"""


def curve(events):
    return [(event["step"], event["return"], event["length"]) for event in events["episode"]]


@pytest.fixture(scope="module")
def quick(worker_in, tmp_path_factory):
    """A short training: the worker, whose folder has the files, and the events."""
    worker = worker_in(tmp_path_factory.mktemp("quick"))
    return worker, worker.run(**QUICK, extras={"checkpoint_every": 1024, "tensorboard_dir": "boards/one"})


def test_a_training_reports_episodes_losses_and_checkpoints(quick):
    worker, events = quick
    episodes = events["episode"]
    assert [event["episode"] for event in episodes] == list(range(len(episodes)))
    assert all(event["return"] == event["length"] for event in episodes), "CartPole gives 1 for each step"
    assert 2048 - 4 * 500 < sum(event["length"] for event in episodes) <= 2048
    assert [event["step"] for event in events["scalars"]] == [512, 1024, 1536, 2048]
    assert set(events["scalars"][0]["values"]) - {"losses/gradient_of_loss"} == LOSSES
    rates = [event["values"]["charts/learning_rate"] for event in events["scalars"]]
    assert rates == pytest.approx([2.5e-4 * part for part in (1, 0.75, 0.5, 0.25)])
    assert [(event["path"], event["step"]) for event in events["checkpoint_saved"]] == [
        ("checkpoints/step-1024.cleanrl_model", 1024),
        ("checkpoints/step-2048.cleanrl_model", 2048),
    ]
    summary = events["run_completed"][0]["summary"]
    assert (summary["steps"], summary["episodes"]) == (2048, len(episodes))
    assert sorted(path.name for path in (worker.folder / "checkpoints").iterdir()) == [
        "step-1024.cleanrl_model",
        "step-2048.cleanrl_model",
    ], "nothing but whole checkpoints is left"


def test_a_missing_gpu_gives_a_warning_and_training_on_the_cpu(worker_in, tmp_path):
    events = worker_in(tmp_path).run(**{**QUICK, "total_timesteps": 512}, extras={"cuda": True})
    (said,) = [event for event in events["log"] if event["level"] == "warning"]
    assert "trains on the CPU" in said["message"]
    assert events["run_completed"]


def test_tensorboard_has_the_same_scalars_under_cleanrls_tags(quick):
    worker, events = quick
    code = """
import json
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
board = EventAccumulator("boards/one").Reload()
print(json.dumps({tag: [(e.step, e.value) for e in board.Scalars(tag)] for tag in board.Tags()["scalars"]}))
"""
    board = worker.python_says(code)
    assert set(board) >= LOSSES
    assert [step for step, _ in board["losses/policy_loss"]] == [event["step"] for event in events["scalars"]]
    assert [[event["step"], event["return"]] for event in events["episode"]] == board["charts/episodic_return"]


def test_the_same_seed_gives_the_same_curve_to_the_last_bit_and_another_seed_does_not(cleanrl, quick):
    first, again = quick[1], cleanrl.run(**QUICK)
    assert curve(first) == curve(again)
    without_speed = [
        [{tag: value for tag, value in event["values"].items() if tag != "charts/SPS"} for event in run["scalars"]]
        for run in (first, again)
    ]
    assert without_speed[0] == without_speed[1]
    assert curve(cleanrl.run(**{**QUICK, "seed": 2})) != curve(first)


def test_frames_and_videos_are_published_and_do_not_change_the_training(cleanrl, quick, tmp_path):
    lane = tmp_path / "lane"
    lane.mkdir()
    cleanrl.environ["MOSAIC_FASTLANE_DIR"] = str(lane)
    extras = {"fastlane_video_mode": "grid", "fastlane_max_dim": 200, "fastlane_interval_ms": 1, "capture_video": True}
    events = cleanrl.run(**QUICK, extras=extras)
    assert (lane / "main.ring").stat().st_size > 0
    videos = [event for event in events["artifact"] if event["kind"] == "video"]
    assert [event["path"] for event in videos][:1] == ["videos/episode-0.png"]
    assert all(b"acTL" in (tmp_path / event["path"]).read_bytes() for event in videos), "they are animated"
    assert curve(events) == curve(quick[1]), "who is watched learns no differently"


def test_a_budget_that_is_no_multiple_of_the_batch_is_kept(cleanrl):
    events = cleanrl.run(**{**QUICK, "total_timesteps": 1003})
    assert events["run_completed"][0]["summary"]["steps"] == 1004, "four environments step together"


def test_minigrid_observations_go_to_the_cnn(cleanrl):
    events = cleanrl.run(algo="ppo", env_id="MiniGrid-Empty-5x5-v0", total_timesteps=512, seed=1)
    path = events["checkpoint_saved"][-1]["path"]
    code = f"""
import json, torch
from pathlib import Path
from cleanrl_worker.checkpoints import load
saved = load(Path({path!r}), "it")
shapes = {{name: list(value.shape) for name, value in saved.weights.items() if value.ndim > 1}}
print(json.dumps([saved.about.agent, shapes]))
"""
    agent, shapes = cleanrl.python_says(code)
    assert agent == "minigrid"
    assert list(shapes.values()) == [
        [32, 3, 3, 3],
        [64, 32, 3, 3],
        [64, 64, 3, 3],
        [128, 3136],
        [128, 128],
        [7, 128],
        [128, 128],
        [1, 128],
    ]


def test_the_mlp_has_one_trunk_for_actor_and_critic(cleanrl):
    code = """
import json
from cleanrl_worker.agents import MLPAgent
agent = MLPAgent((4,), 2)
weight = agent.trunk[2].weight.detach()
error = float((weight @ weight.T - 2 * weight.new_ones(64).diag()).abs().max())
print(json.dumps([str(agent.trunk), str(agent.actor), str(agent.critic), error]))
"""
    trunk, actor, critic, error = cleanrl.python_says(code)
    assert trunk.count("Tanh") == 2
    assert "in_features=4, out_features=64" in trunk
    assert "in_features=64, out_features=64" in trunk
    assert "in_features=64, out_features=2" in actor
    assert "in_features=64, out_features=1" in critic
    assert error < 1e-5, "the weights begin orthogonal, with a gain of sqrt(2)"


REFUSED = (
    (
        {"env_id": "Pendulum-v1"},
        "ppo needs a discrete action space; Pendulum-v1 has Box(-2.0, 2.0, (1,)). Try ppo_continuous_action.",
    ),
    ({"env_id": "CartPol-v1"}, "did you mean 'CartPole-v1'"),
    ({"env_id": "no_such_module:X-v0"}, "module 'no_such_module' cannot be imported"),
    (
        {"env_id": "broken_module:X-v0"},
        "env_id: 'broken_module:X-v0': module 'broken_module' cannot be imported: ZeroDivisionError: division by zero",
    ),
    ({"env_id": "ALE/Pong-v5"}, "Try ppo_atari."),
    ({"extras": {"algo_params": {"learning_rat": 1}}}, "did you mean 'learning_rate'?"),
    (
        {"extras": {"algo_params": {"num_envs": 1.5}}},
        "extras.algo_params.num_envs: 1.5 is not allowed: a whole number is needed",
    ),
    ({"extras": {"algo_params": {"anneal_lr": 1}}}, "extras.algo_params.anneal_lr: 1 is not allowed: true or"),
    ({"extras": {"algo_params": {"gamma": 2}}}, "give a number from 0 to 1"),
    ({"extras": {"algo_params": {"env_id": "X"}}}, "extras.algo_params.env_id: 'X' is not allowed: give it as env_id"),
)


def test_a_config_that_cannot_run_is_refused_before_the_first_step(cleanrl, tmp_path):
    (tmp_path / "broken_module.py").write_text("1 / 0\n")
    said = cleanrl.refusals(*({**QUICK, **config} for config, _ in REFUSED))
    for (config, message), text in zip(REFUSED, said, strict=True):
        assert message in text, config


def test_a_refusal_is_a_configuration_error_and_a_dry_run_says_the_same(cleanrl):
    for env_id, said in (("Pendulum-v1", "Try ppo_continuous_action."), ("ALE/Pong-v5", "Try ppo_atari.")):
        error = cleanrl.refusal(**{**QUICK, "env_id": env_id})
        assert error.endswith(said)
        assert cleanrl.dry_run(**{**QUICK, "env_id": env_id})[1]["problems"] == [error]


def test_settings_may_come_as_yaml_gives_them(cleanrl):
    events = cleanrl.run(
        **QUICK, extras={"algo_params": {"learning_rate": 1e-3, "num_steps": 256.0, "anneal_lr": False}}
    )
    assert [event["step"] for event in events["scalars"]] == [1024, 2048]
    assert {event["values"]["charts/learning_rate"] for event in events["scalars"]} == {1e-3}


def test_a_nan_loss_fails_the_run_with_that_reason(cleanrl, tmp_path):
    (tmp_path / "broken_env.py").write_text(NAN_ENV)
    config = {**QUICK, "env_id": "broken_env:Broken-v0", "total_timesteps": 4096}
    events = cleanrl.run(code=1, **config, extras={"checkpoint_every": 512})
    (failed,) = events["run_failed"]
    assert failed["category"] == "application"
    assert failed["error"].startswith("loss is NaN at step 1536 (losses/")
    assert [event["step"] for event in events["checkpoint_saved"]] == [512, 1024], "only what is sound is kept"


def test_discrete_observations_and_actions_that_do_not_start_at_zero(cleanrl, tmp_path):
    (tmp_path / "shifted_env.py").write_text(
        """
import gymnasium
class Shifted(gymnasium.Env):
    observation_space = gymnasium.spaces.Discrete(3)
    action_space = gymnasium.spaces.Discrete(2, start=5)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 1, {}
    def step(self, action):
        assert action in (5, 6), action
        return 2, float(action), True, False, {}
gymnasium.register("Shifted-v0", Shifted)
"""
    )
    events = cleanrl.run(**{**QUICK, "env_id": "shifted_env:Shifted-v0", "total_timesteps": 512})
    assert {event["return"] for event in events["episode"]} == {5.0, 6.0}


def test_wandb_stays_offline_unless_told_otherwise(cleanrl, tmp_path):
    cleanrl.run(**QUICK, extras={"track_wandb": True, "wandb_project_name": "p"})
    (written,) = (tmp_path / "wandb").rglob("*.wandb")
    assert written.parent.name.startswith("offline-run-")
    assert b"losses/policy_loss" in written.read_bytes(), "what goes to TensorBoard goes there, too"
    assert json.loads((tmp_path / "analytics.json").read_text())["wandb"]["project"] == "p"
