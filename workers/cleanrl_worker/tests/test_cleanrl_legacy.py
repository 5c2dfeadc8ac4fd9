"""Profile legacy: the unmodified scripts of cleanrl 0.4.8 from PyPI train and report on gym 0.21."""

from statistics import fmean

import pytest
from upstream_runs import Worker, tensorboard_scalars

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CARTPOLE, PENDULUM = "CartPole-v0", "Pendulum-v1"


@pytest.fixture
def worker(tmp_path):
    return Worker("legacy", tmp_path / "run")


@pytest.mark.parametrize(
    ("algo", "env_id", "steps", "params", "loss"),
    [
        ("ppo", "CartPole-v1", 1024, {}, "losses/value_loss"),
        ("dqn", CARTPOLE, 500, {"learning_starts": 100}, "losses/td_loss"),
        ("c51", CARTPOLE, 500, {"learning_starts": 100}, "losses/td_loss"),
        ("ddpg_continuous_action", PENDULUM, 620, {"learning_starts": 400}, "losses/qf1_loss"),
        ("td3_continuous_action", PENDULUM, 620, {"learning_starts": 400}, "losses/qf1_loss"),
        ("sac_continuous_action", PENDULUM, 520, {"learning_starts": 300}, "losses/soft_q_value_1_loss"),
        ("ppo_continuous_action", PENDULUM, 1024, {"num_steps": 512}, "losses/value_loss"),
    ],
)
def test_a_script_trains_and_reports(worker, algo, env_id, steps, params, loss):
    done = worker.run(algo=algo, env_id=env_id, total_timesteps=steps, seed=1, extras={"algo_params": params})
    assert any(value for _, value in done.scalars[loss])
    assert done.one("run_completed")["step"] == steps
    episodes = [event["return"] for event in done.all("episode")]
    assert episodes
    logged = [value for _, value in done.scalars["charts/episode_reward"]]
    assert logged
    assert all(any(value == pytest.approx(other, rel=1e-4) for other in episodes) for value in logged)
    assert tensorboard_scalars(worker.python, worker.folder / "tensorboard")[loss]
    assert done.one("run_started")["versions"]["gym"] == "0.21.0"


def test_frames_of_old_gym_are_recorded(worker):
    extras = {"record": "every=10", "algo_params": {"learning_starts": 100}}
    done = worker.run(algo="dqn", env_id=CARTPOLE, total_timesteps=300, seed=1, extras=extras)
    videos = [event["path"] for event in done.all("artifact") if event["kind"] == "video"]
    assert videos[0] == "videos/episode-0.png"
    assert (done.folder / videos[0]).stat().st_size > 1000


def test_dqn_learns_cartpole(worker):
    params = {"learning_starts": 1000, "exploration_fraction": 0.4, "train_frequency": 2}
    done = worker.run(algo="dqn", env_id="CartPole-v1", total_timesteps=10_000, seed=1, extras={"algo_params": params})
    returns = [event["return"] for event in done.all("episode")]
    early, late = fmean(returns[:20]), fmean(returns[-20:])
    print(f"dqn on CartPole-v1, seed 1: first 20 episodes {early:.1f}, last 20 {late:.1f}; random plays about 21")
    assert early < 40
    assert late > 100


def test_seed_0_is_refused_because_the_scripts_take_it_for_none(worker):
    refused = worker.run("--dry-run", code=2, algo="dqn", env_id=CARTPOLE, total_timesteps=100, seed=0).events[0]
    assert refused["problems"] == [
        "seed: 0 is not allowed: to cleanrl 0.4.8 it means none, and the clock is taken; give 1 or more"
    ]


def test_what_old_gym_cannot_do_is_refused(worker):
    pendulum = worker.run("--dry-run", code=2, algo="dqn", env_id=PENDULUM, total_timesteps=100).events[0]
    assert pendulum["problems"] == [
        "dqn needs a discrete action space; Pendulum-v1 has Box(-2.0, 2.0, (1,)). Try sac_continuous_action."
    ]
    typo = worker.run("--dry-run", code=2, algo="dqn", env_id="CartPol-v0", total_timesteps=100).events[-1]
    assert "did you mean 'CartPole-v0'" in typo["problems"][0]
    absent = worker.run("--dry-run", code=2, algo="pqn", env_id=CARTPOLE, total_timesteps=100).events[-1]
    assert "pqn" in absent["problems"][0]
