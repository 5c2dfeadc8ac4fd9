"""Train with RLlib alone and with the worker, in turns, in the worker's environment; print rates as JSON.

Arguments: the config of a run as JSON, steps of one training, rounds. A rate is steps per second of the training loop:
by CPU time, and by the clock. Both train with the same settings in one process, connected to one Ray.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ray_worker import get_worker_metadata
from ray_worker.cluster import connect, set_variables
from ray_worker.config import RayWorkerConfig

from mosaic_worker.context import RunContext
from mosaic_worker.emitter import Emitter
from mosaic_worker.stop import Stop

set_variables("", os.environ)

import torch  # noqa: E402 - Ray reads its variables when it is imported
from ray.rllib.algorithms.ppo import PPOConfig  # noqa: E402 - as above
from ray_worker.algorithms import task_of  # noqa: E402 - as above
from ray_worker.sitecustomize import keep_out_of_home  # noqa: E402 - as above
from ray_worker.training import Start, Training  # noqa: E402 - as above

SEED = 1
WARM_UP_STEPS = 2048


class Loops:
    """The two loops; each returns the CPU time and the time that it took, and its steps."""

    def __init__(self, given: dict[str, Any], run_dir: Path) -> None:
        self._config = RayWorkerConfig(run_id="bench", **given)
        self._task = task_of(self._config)
        self._run_dir = run_dir

    def alone(self, count: int) -> tuple[float, float]:
        """RLlib as its documentation uses it."""
        resources, training = self._config.resources, self._config.training
        config = (
            PPOConfig()
            .environment(self._config.environment.env_id)
            .env_runners(num_env_runners=0, num_envs_per_env_runner=resources.num_envs_per_worker)
            .learners(num_learners=0)
            .training(**training.algo_params)
            .rl_module(model_config=dict(training.network))
            .debugging(seed=SEED, log_level="WARN")
        )
        keep_out_of_home(self._run_dir)
        algorithm = config.build_algo()
        steps, began = 0, _now()
        while steps < count:
            steps = int(algorithm.train()["env_runners"]["num_env_steps_sampled_lifetime"])
        algorithm.save_to_path(str(self._run_dir / "alone"))
        taken = _since(began, steps)
        algorithm.stop()
        return taken

    def worker(self, count: int) -> tuple[float, float]:
        """The worker's loop: every episode, the losses and a checkpoint."""
        with tempfile.TemporaryDirectory() as folder:
            journal = os.open(Path(folder) / "journal", os.O_CREAT | os.O_WRONLY)
            context = RunContext(get_worker_metadata(), self._config, Emitter(journal), Stop(), Path(folder))
            training = Training(context, self._task, SEED, Start(count), {})
            began = _now()
            training.run()
            taken = _since(began, training.step)
            training.close()
            os.close(journal)
        return taken


def _now() -> tuple[float, float]:
    return time.process_time(), time.perf_counter()


def _since(began: tuple[float, float], steps: int) -> tuple[float, float]:
    computed, passed = (now - then for now, then in zip(_now(), began, strict=True))
    return steps / computed, steps / passed


def main() -> None:
    """Entry point."""
    given, steps, rounds = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    found = []
    with tempfile.TemporaryDirectory(prefix="mosaic-bench-") as folder:
        loops = Loops(given, Path(folder))
        with connect(RayWorkerConfig(run_id="bench", **given).resources, Path(folder)):
            for way in (loops.alone, loops.worker):  # torch imports modules with its first update.
                way(WARM_UP_STEPS)
            for number in range(rounds):
                ways = (loops.alone, loops.worker) if number % 2 else (loops.worker, loops.alone)
                found.append({way.__name__: way(steps) for way in ways})
    print(json.dumps(found))


if __name__ == "__main__":
    main()
