"""Unmodified scripts of a real CleanRL checkout, given by MOSAIC_CLEANRL_CHECKOUT, train and report."""

import os
from pathlib import Path

import pytest
from upstream_runs import Worker

CHECKOUT = os.environ.get("MOSAIC_CLEANRL_CHECKOUT")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not CHECKOUT, reason="MOSAIC_CLEANRL_CHECKOUT does not name a checkout of CleanRL"),
]

CARTPOLE, PENDULUM = "CartPole-v1", "Pendulum-v1"


@pytest.fixture
def worker(tmp_path):
    return Worker("default", tmp_path / "run", Path(CHECKOUT))


@pytest.mark.parametrize(
    ("algo", "env_id", "steps", "params", "loss"),
    [
        ("dqn", CARTPOLE, 600, {"learning_starts": 100}, "losses/td_loss"),
        ("c51", CARTPOLE, 600, {"learning_starts": 100}, "losses/loss"),
        ("pqn", CARTPOLE, 1024, {"num_steps": 64}, "losses/td_loss"),
        ("ppo_continuous_action", PENDULUM, 1024, {"num_steps": 512}, "losses/value_loss"),
        ("rpo_continuous_action", PENDULUM, 1024, {"num_steps": 512}, "losses/value_loss"),
        ("sac_continuous_action", PENDULUM, 420, {"learning_starts": 250, "buffer_size": 1000}, "losses/qf1_loss"),
        ("td3_continuous_action", PENDULUM, 620, {"learning_starts": 260, "buffer_size": 1000}, "losses/qf1_loss"),
        ("ddpg_continuous_action", PENDULUM, 620, {"learning_starts": 260, "buffer_size": 1000}, "losses/qf1_loss"),
    ],
)
def test_a_script_trains_and_reports(worker, algo, env_id, steps, params, loss):
    done = worker.run(algo=algo, env_id=env_id, total_timesteps=steps, seed=1, extras={"algo_params": params})
    values = [value for _, value in done.scalars[loss]]
    assert values
    assert any(values)
    assert done.one("run_completed")["step"] == steps
    episodes = done.all("episode")
    assert episodes
    logged = [value for _, value in done.scalars.get("charts/episodic_return", [])]
    assert [event["return"] for event in episodes][: len(logged)] == pytest.approx(logged, rel=1e-4)
    assert done.one("run_started")["task"] == f"{algo} on {env_id}"


def test_evaluation_episodes_of_a_saved_model_are_reported_separately(worker):
    extras = {"algo_params": {"learning_starts": 100, "save_model": True}}
    done = worker.run(algo="dqn", env_id=CARTPOLE, total_timesteps=500, seed=1, extras=extras)
    assert len(done.all("evaluation_episode")) >= 10
    assert done.one("run_completed")["step"] == 500
    (model,) = [event["path"] for event in done.all("artifact") if event["kind"] == "model"]
    assert model.endswith("dqn.cleanrl_model")
    assert [event for event in done.all("artifact") if event["kind"] == "video"]  # the evaluation records its own video


def test_an_atari_game_trains(worker):
    params = {"num_envs": 2, "num_steps": 32, "num_minibatches": 2, "update_epochs": 1}
    extras = {"algo_params": params}
    done = worker.run(algo="ppo_atari", env_id="BreakoutNoFrameskip-v4", total_timesteps=1024, seed=1, extras=extras)
    assert done.scalars["losses/value_loss"]
    assert done.all("episode")
    assert done.one("run_completed")["step"] == 1024  # steps, not frames: the script skips three frames in four
