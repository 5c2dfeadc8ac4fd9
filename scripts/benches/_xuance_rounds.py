"""Train with XuanCe alone and with the worker, in turns, in the worker's environment; print rates as JSON.

Arguments: the config of a run as JSON, steps of one training, rounds. A rate is steps per second of XuanCe's training
loop: by CPU time, and by the clock.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

from xuance.environment import make_envs
from xuance.torch.agents import REGISTRY_Agents
from xuance_worker import get_worker_metadata
from xuance_worker.config import XuanCeWorkerConfig
from xuance_worker.task import task_of
from xuance_worker.training import Start, train, use_threads

from mosaic_worker.context import RunContext
from mosaic_worker.emitter import Emitter
from mosaic_worker.stop import Stop

SEED = 1
WARM_UP_STEPS = 2000


def main() -> None:
    """Entry point."""
    given, steps, rounds = json.loads(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    config = XuanCeWorkerConfig(run_id="bench", **given)
    task = task_of(config)
    upstream = REGISTRY_Agents[task.agent.name]
    loop = upstream.train
    taken: list[tuple[float, float]] = []

    def timed(self: object, count: int) -> object:
        began = time.process_time(), time.perf_counter()
        result = loop(self, count)
        taken.append((time.process_time() - began[0], time.perf_counter() - began[1]))
        return result

    def alone(folder: Path, count: int) -> None:
        arguments = task.arguments(SEED, count, "cpu", folder)
        envs = make_envs(arguments)
        agent = upstream(arguments, envs)
        agent.train(count // envs.num_envs)
        agent.finish()
        envs.close()

    def worker(folder: Path, count: int) -> None:
        journal = os.open(folder / "journal", os.O_CREAT | os.O_WRONLY)
        context = RunContext(get_worker_metadata(), config, Emitter(journal), Stop(), folder)
        train(context, task, SEED, Start(count), {})
        os.close(journal)

    def rates(way: object, count: int) -> tuple[float, float]:
        with tempfile.TemporaryDirectory() as folder:
            way(Path(folder), count)  # type: ignore[operator]
        computed, passed = taken.pop()
        return count / computed, count / passed

    upstream.train = timed
    use_threads()
    for way in (alone, worker):  # torch imports modules with its first update.
        rates(way, WARM_UP_STEPS)
    found = []
    for number in range(rounds):
        ways = (alone, worker) if number % 2 else (worker, alone)
        found.append({way.__name__: rates(way, steps) for way in ways})
    print(json.dumps(found))


if __name__ == "__main__":
    main()
