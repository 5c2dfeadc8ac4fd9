"""ppo learns with the settings shipped in configs/: several seeds, each evaluated over 100 greedy episodes."""

from pathlib import Path

import pytest
import yaml

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

CONFIGS = Path(__file__).parents[3] / "configs" / "runs"
EVALUATION_SEED = 10_000
MOST_STEPS = 100_000


def trained_and_evaluated(worker, name, seed):
    """Train with a shipped config; return the mean return of 100 greedy episodes with unseen seeds."""
    config = {**yaml.safe_load((CONFIGS / name).read_text())["config"], "seed": seed}
    trained = worker.run(**config)
    saved = trained["checkpoint_saved"][-1]
    assert saved["step"] <= MOST_STEPS + 3
    extras = {"mode": "policy_eval", "policy_path": saved["path"], "eval_episodes": 100, "eval_num_envs": 20}
    summary = worker.run(seed=EVALUATION_SEED, extras=extras)["run_completed"][0]["summary"]
    assert summary["episodes"] == 100
    print(name, seed, trained["run_completed"][0]["summary"], summary)
    return summary["return_mean"]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_ppo_learns_cartpole(cleanrl, seed):
    assert trained_and_evaluated(cleanrl, "ppo-cartpole.yaml", seed) >= 475


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_ppo_learns_minigrid(cleanrl, seed):
    assert trained_and_evaluated(cleanrl, "ppo-minigrid.yaml", seed) >= 0.9
