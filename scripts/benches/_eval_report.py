"""The report of the eval bench: seconds from the records of an experiment to the folder of its report."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path

import numpy as np

from mosaic_services.report import write_report

OPERATORS = 10
# Share of episodes in which a saturated operator fails.
FAILING = 0.1


def write_experiment(folder: Path, episodes: int) -> None:
    """Write the records of that many episodes in all: saturated, normal and skewed returns, nine trained operators."""
    generator = np.random.default_rng(0)
    count = episodes // OPERATORS
    kinds = (
        lambda: np.where(generator.random(count) < FAILING, 20.0, 500.0),
        lambda: generator.normal(300, 80, count),
        lambda: generator.exponential(22, count),
    )
    names = [f"operator-{number}" for number in range(OPERATORS)]
    operators = {
        name: {
            "worker": "cleanrl",
            "algorithm": f"algorithm-{number % 3}",
            "training_run": name,
            "training_seed": number,
        }
        for number, name in enumerate(names)
    }
    lineups = [{"name": name, "agents": {"*": name}} for name in names]
    experiment = {"name": "bench", "operators": operators, "lineups": lineups, "episodes": count, "target": 500.0}
    (folder / "experiment.json").write_text(json.dumps(experiment))
    with (folder / "episodes.jsonl").open("w") as file:
        for number, name in enumerate(names):
            for episode, score in enumerate(kinds[number % 3]().tolist()):
                record = {"lineup": name, "episode": episode, "env_seed": episode, "seeds": {"agent": episode}}
                record |= {"returns": {"agent": score}, "length": 100, "ended": "terminated", "winners": None}
                record |= {
                    "failures": [],
                    "action_hash": f"{episode:064x}",
                    "numerics": {name: "a", "environment": "b"},
                }
                file.write(json.dumps(record) + "\n")


def measure_report(episodes: int = 100_000) -> dict[str, float]:
    """Seconds of wall-clock and of CPU time of one report."""
    with tempfile.TemporaryDirectory(prefix="mosaic-bench-") as scratch:
        folder = Path(scratch)
        write_experiment(folder, episodes)
        began, used = time.perf_counter(), time.process_time()
        write_report(folder)
        return {
            "report_s": round(time.perf_counter() - began, 2),
            "report_cpu_s": round(time.process_time() - used, 2),
            "report_episodes": episodes,
        }


if __name__ == "__main__":
    print(json.dumps(measure_report()))
