"""The resume of the eval bench: seconds until an experiment with many records goes on.

Method. One stack of real services. The folder of an experiment with ten operators holds records of all episodes but
ten. The clock runs from before `start_experiment` to its answer: the records are read, what is missing is found and
cut into shards, and the shards are on disk, ready to be submitted.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from stack import Stack  # noqa: E402 - the path is set just above

from mosaic_bus.commands import StartExperiment, StopExperiment  # noqa: E402 - as above
from mosaic_services.experiments.folder import ExperimentFolder  # noqa: E402 - as above
from mosaic_services.experiments.model import Experiment  # noqa: E402 - as above
from mosaic_services.experiments.plan import make_plan  # noqa: E402 - as above
from mosaic_services.experiments.records import record_line  # noqa: E402 - as above

OPERATORS = 10


def document(episodes: int) -> dict[str, Any]:
    """An experiment with so many episodes in all."""
    return {
        "name": "bench",
        "environment": {"id": "CartPole-v1"},
        "operators": {f"operator-{number}": {"worker": "baseline"} for number in range(OPERATORS)},
        "episodes": episodes // OPERATORS,
    }


def write_records(folder: ExperimentFolder, episodes: int) -> None:
    """Write the plan, and a record of each episode."""
    experiment = document(episodes)
    folder.write_plan(make_plan(Experiment.model_validate(experiment), {}))
    folder.append(
        record_line(
            {
                "lineup": name,
                "episode": episode,
                "env_seed": episode,
                "seeds": {"agent": episode},
                "returns": {"agent": 500.0},
                "length": 500,
                "ended": "truncated",
                "winners": None,
                "failures": [],
                "action_hash": f"{episode:064x}",
                "numerics": {name: "free-0123456789abcdef", "environment": "0123456789abcdef"},
            }
        )
        for name in experiment["operators"]
        for episode in range(experiment["episodes"])
    )


def measure_resume(episodes: int = 200_000) -> dict[str, float]:
    """Seconds until an experiment with that many records goes on."""
    with tempfile.TemporaryDirectory(prefix="mosaic-bench-") as scratch, Stack(Path(scratch) / "home") as stack:
        write_records(ExperimentFolder(stack.home.experiments / "bench"), episodes)
        command = StartExperiment(experiment=document(episodes + OPERATORS), shards=2)
        began = time.perf_counter()
        started = stack.bus.request("operator", command, timeout=120)
        seconds = time.perf_counter() - began
        if (started.done, started.wanted) != (episodes, episodes + OPERATORS):
            raise AssertionError(f"{started.done} of {started.wanted} episodes are there")
        stack.bus.request("operator", StopExperiment(experiment="bench"))
        return {"resume_s": round(seconds, 2), "resume_episodes": episodes}


if __name__ == "__main__":
    print(json.dumps(measure_resume()))
