"""Whether PPO of RLlib learns under the worker: CartPole, tic-tac-toe against itself, simple_spread with one policy.

Method. The runs of configs/runs/rllib-*.yaml train with seeds 1, 2 and 3 in the worker's own environment. Each trained
policy, and the same networks with fresh weights, then act greedily without a cluster. CartPole and simple_spread: 100
episodes with seeds 10000 to 10099; `gain` is the mean difference of returns, paired by seed, with a 95 % interval (a
percentile bootstrap over episodes). Tic-tac-toe: 200 games on each side against a random player; `win_rate` counts
draws as not won and has a 95 % Wilson interval. `learned` says whether a training did what is asked of it: a mean
return of 450; an interval above 0.8; an interval of the gain above 0.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from scipy import stats

from mosaic_services.environments import build, recipe_for
from mosaic_services.home import StackHome

if TYPE_CHECKING:
    from mosaic_services.environments import Environment

ROOT = Path(__file__).parents[2]
JUDGE = Path(__file__).with_name("_rllib_judge.py")
TASKS = ("cartpole", "tictactoe", "spread")
FIRST_SEED = 10_000
EPISODES = {"cartpole": 100, "spread": 100, "tictactoe": 200}
REPEATS = 10_000
ENOUGH_RETURN = 450
ENOUGH_WINS = 0.8


class Bench:
    """The worker in its own environment."""

    def __init__(self, environment: Environment, folder: Path) -> None:
        self._environment = environment
        self._folder = folder
        self._environ = {**environment.environ(), "OMP_NUM_THREADS": "1"}

    def train(self, task: str, seed: int) -> tuple[Path, float]:
        """Train; return the folder and the seconds that it took."""
        config = yaml.safe_load((ROOT / "configs" / "runs" / f"rllib-{task}.yaml").read_text())["config"]
        folder = self._folder / f"{task}-{seed}"
        folder.mkdir()
        (folder / "worker.json").write_text(json.dumps({"run_id": folder.name, **config, "seed": seed}))
        began = time.monotonic()
        self._run(folder, "-m", "ray_worker.cli", "--config", "worker.json")
        return folder, time.monotonic() - began

    def judge(self, task: str, folder: Path) -> dict[str, Any]:
        """Let the policies play."""
        game = ["game"] if task == "tictactoe" else []
        found: dict[str, Any] = self._run(folder, str(JUDGE), str(folder), str(FIRST_SEED), str(EPISODES[task]), *game)
        return found

    def _run(self, folder: Path, *arguments: str) -> Any:
        command = [str(self._environment.python), *arguments]
        done = subprocess.run(command, cwd=folder, env=self._environ, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{' '.join(arguments)}: exit code {done.returncode}\n{done.stderr[-3000:]}")
        return json.loads(done.stdout.splitlines()[-1])


def games(found: dict[str, int]) -> dict[str, Any]:
    """The share of games won."""
    wins, played = found["wins"], found["games"]
    low, high = map(float, stats.binomtest(wins, played).proportion_ci(method="wilson"))
    return {"win_rate": round(wins / played, 3), "interval": [round(low, 3), round(high, 3)], **found}


def gain(trained: list[float], untrained: list[float]) -> dict[str, Any]:
    """Compare episode by episode."""
    differences = np.subtract(trained, untrained)
    means = np.random.default_rng(0).choice(differences, (REPEATS, len(differences))).mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return {"mean": round(float(differences.mean()), 2), "interval": [round(float(low), 2), round(float(high), 2)]}


def row_of(task: str, seed: int, took: float, found: dict[str, Any]) -> dict[str, Any]:
    """Sum up one training."""
    row: dict[str, Any] = {"task": task, "seed": seed, "seconds": round(took)}
    if task == "tictactoe":
        row |= {name: games(each) for name, each in found.items()}
        return {**row, "learned": row["trained"]["interval"][0] > ENOUGH_WINS}
    row |= {name: round(float(np.mean(each)), 2) for name, each in found.items()}
    row["gain"] = gain(found["trained"], found["untrained"])
    learned = row["trained"] >= ENOUGH_RETURN if task == "cartpole" else row["gain"]["interval"][0] > 0
    return {**row, "learned": bool(learned)}


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="training seeds")
    parser.add_argument("--tasks", nargs="+", default=TASKS, choices=TASKS)
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    rows = []
    with tempfile.TemporaryDirectory(prefix="mosaic-bench-") as folder:
        recipe = recipe_for("ray", StackHome(Path(folder) / "home"))
        bench = Bench(build(recipe, "default", lambda step, _: print(step, file=sys.stderr)), Path(folder))
        for task in arguments.tasks:
            for seed in arguments.seeds:
                trained, took = bench.train(task, seed)
                rows.append(row_of(task, seed, took, bench.judge(task, trained)))
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
