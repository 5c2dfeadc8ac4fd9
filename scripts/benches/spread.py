"""Whether XuanCe's agents learn simple_spread_v3: against their untrained policies and a random one.

Method. The runs of configs/runs/vdn-spread.yaml and ippo-spread.yaml train with seeds 1, 2 and 3 in the worker's own
environment. Each trained policy, the same policy before its training, and a random one play the same 100 episodes
(seeds 10000 to 10099), greedily. `gain` is the mean difference of returns over episodes, paired by seed; its 95 %
interval is a percentile bootstrap over episodes. A return is the mean over the three agents.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from mosaic_services.environments import build, recipe_for
from mosaic_services.home import StackHome

ROOT = Path(__file__).parents[2]
FIRST_SEED = 10_000
EPISODES = 100
REPEATS = 10_000

RANDOM = """
import json, sys
from pettingzoo.mpe import simple_spread_v3
env, means = simple_spread_v3.parallel_env(), []
for seed in range(int(sys.argv[1]), int(sys.argv[1]) + int(sys.argv[2])):
    env.reset(seed=seed)
    for number, agent in enumerate(env.agents):
        env.action_space(agent).seed(seed * 3 + number)
    total = 0.0
    while env.agents:
        _, rewards, *_ = env.step({agent: env.action_space(agent).sample() for agent in env.agents})
        total += sum(rewards.values()) / 3
    means.append(total)
print(json.dumps(means))
"""


class Worker:
    """The worker in its own environment."""

    def __init__(self, folder: Path) -> None:
        """Build the environment if it is not there."""
        self._folder = folder
        self._environment = build(recipe_for("xuance", StackHome.find(folder)), "default", lambda *_: None)
        self._environ = self._environment.environ()

    def run(self, name: str, **config: Any) -> list[dict[str, Any]]:
        """Run a config to its end; return its events."""
        folder = self._folder / name
        folder.mkdir()
        (folder / "worker.json").write_text(json.dumps({"run_id": name, **config}))
        command = self._environment.command("--config", "worker.json")
        done = subprocess.run(command, cwd=folder, env=self._environ, capture_output=True, text=True, check=True)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def code(self, code: str, *arguments: object) -> Any:
        """Run Python code; return the JSON that it prints last."""
        command = [str(self._environment.python), "-c", code, *map(str, arguments)]
        done = subprocess.run(command, cwd=self._folder, env=self._environ, capture_output=True, text=True, check=True)
        return json.loads(done.stdout.splitlines()[-1])

    def returns(self, name: str) -> np.ndarray[Any, Any]:
        """Let the policy of a run play; return what each episode gave."""
        where = str(self._folder / name)
        config = {"mode": "policy_eval", "policy_path": where, "seed": FIRST_SEED, "eval_episodes": EPISODES}
        events = self.run(f"{name}-eval", **config)
        return np.array([event["return"] for event in events if event["event"] == "episode"])


def gain(trained: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> dict[str, Any]:
    """Compare episode by episode."""
    differences = trained - other
    generator = np.random.default_rng(0)
    means = generator.choice(differences, (REPEATS, len(differences))).mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return {"mean": round(float(differences.mean()), 2), "interval": [round(float(low), 2), round(float(high), 2)]}


def learning(worker: Worker, name: str, seeds: list[int], random: np.ndarray[Any, Any]) -> list[dict[str, Any]]:
    """Train with every seed and compare."""
    config = yaml.safe_load((ROOT / "configs" / "runs" / f"{name}-spread.yaml").read_text())["config"]
    rows = []
    for seed in seeds:
        began = time.monotonic()
        worker.run(f"{name}-{seed}", **{**config, "seed": seed})
        took = time.monotonic() - began
        worker.run(f"{name}-{seed}-untrained", **{**config, "seed": seed, "running_steps": 1})
        trained, untrained = worker.returns(f"{name}-{seed}"), worker.returns(f"{name}-{seed}-untrained")
        row = {
            "algorithm": name,
            "seed": seed,
            "seconds": round(took),
            "trained": round(float(trained.mean()), 2),
            "untrained": round(float(untrained.mean()), 2),
            "random": round(float(random.mean()), 2),
            "gain_over_untrained": gain(trained, untrained),
            "gain_over_random": gain(trained, random),
        }
        print(json.dumps(row), file=sys.stderr, flush=True)
        rows.append(row)
    return rows


def main() -> None:
    """Measure and print JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="training seeds")
    parser.add_argument("--algorithms", nargs="*", default=["vdn", "ippo"], choices=["vdn", "ippo"])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mosaic-bench-") as folder:
        worker = Worker(Path(folder))
        random = np.array(worker.code(RANDOM, FIRST_SEED, EPISODES))
        rows = [row for name in arguments.algorithms for row in learning(worker, name, arguments.seeds, random)]
    print(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
