"""How fast policies are evaluated: arena against plain loop, two processes against one, shards side by side.

Method. The arena and its policies are started as a shard would be, without a stack; times do not count starting and
probing. Each figure is the best of some repetitions of both sides in turn, since other load only slows down.
`batch_ratio`: steps per second of a shard of CartPole-v1 with a ppo of the cleanrl worker, trained for 20,000 steps,
over those of a plain Gymnasium loop with the same model in one process. `lockstep_turn_ratio` and
`lockstep_simultaneous_ratio`: moves per second of a game of two whose environment takes 30 us, in one lane, with two
networks in two processes, over both networks and the game in one process. `image_us`: median round trip of an 84x84x4
observation of bytes to a policy and of its action back. `shard_scaling`: steps per second of two shards of that
CartPole, each pinned to a CPU of its own, over those of one shard on one CPU. `report_s` and `resume_s` are described
in `_eval_report.py` and `_eval_resume.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _eval_report import measure_report
from _eval_resume import measure_resume

from mosaic_services.environments import build, recipe_for
from mosaic_services.home import StackHome

if TYPE_CHECKING:
    from collections.abc import Callable

    from mosaic_services.environments import Environment

SCRIPTS = Path(__file__).parents[1]
TRAINING = {
    "algo": "ppo",
    "env_id": "CartPole-v1",
    "total_timesteps": 20_000,
    "seed": 1,
    "extras": {"algo_params": {"learning_rate": 0.001, "num_steps": 256, "num_minibatches": 8, "update_epochs": 10}},
}
DEADLINE_S = 900
LANES = 128


class Bench:
    """The environments, and ways to run things in them."""

    def __init__(self, folder: Path) -> None:
        home = StackHome.find(folder / "home")
        self.folder = folder
        self._number = 0
        self._built: dict[str, Environment] = {}
        for worker in ("arena", "baseline", "cleanrl"):
            self._built[worker] = build(recipe_for(worker, home), "default", lambda *_: None)

    def use(self, worker: str) -> dict[str, Any]:
        """One entry of `uses` in worker.json."""
        environment = self._built[worker]
        argv = environment.command()
        return {"worker": worker, "profile": "default", "argv": argv, "environ": environment.variables()}

    def start(self, worker: str, *arguments: str, cpu: int | None = None) -> subprocess.Popen[str]:
        """Start a Python of a worker's environment in a folder of its own."""
        environment = self._built[worker]
        environ = {**os.environ, **environment.variables(), "OMP_NUM_THREADS": "1"}
        environ["PYTHONPATH"] = f"{environment.site}{os.pathsep}{SCRIPTS}"
        pinned = ["taskset", "--cpu-list", str(cpu)] if cpu is not None else []
        command = [*pinned, str(environment.python), *arguments]
        return subprocess.Popen(command, cwd=self.new_folder(), env=environ, stdout=subprocess.PIPE, text=True)

    def new_folder(self) -> Path:
        """A folder that nobody has used."""
        self._number += 1
        folder = self.folder / str(self._number)
        folder.mkdir()
        return folder

    def measure(self, worker: str, script: str, *arguments: object) -> float:
        """Run a script of this folder; return the number that it prints."""
        path = SCRIPTS / "benches" / script
        return float(_finish(self.start(worker, str(path), *map(str, arguments))).splitlines()[-1])

    def train(self) -> str:
        """Train the model; return its path."""
        folder = self.new_folder()
        (folder / "worker.json").write_text(json.dumps({"run_id": "train", **TRAINING}))
        config = str(folder / "worker.json")
        output = _finish(self.start("cleanrl", "-m", "cleanrl_worker.cli", "--config", config))
        saved = [json.loads(line)["path"] for line in output.splitlines() if '"checkpoint_saved"' in line]
        return str(folder.with_name(str(self._number)) / saved[-1])

    def shard(self, config: dict[str, Any], cpu: int | None = None) -> subprocess.Popen[str]:
        """Start a shard."""
        folder = self.new_folder()
        document = {"run_id": "shard", "metadata": {"worker": {"config": config}}, "uses": [self.use("cleanrl")]}
        (folder / "worker.json").write_text(json.dumps(document))
        arguments = ("-m", "arena_worker.cli", "--config", str(folder / "worker.json"))
        return self.start("arena", *arguments, cpu=cpu)


def _finish(process: subprocess.Popen[str]) -> str:
    output, _ = process.communicate(timeout=DEADLINE_S)
    if process.returncode != 0:
        raise SystemExit(f"bench eval: {process.args!r} ended with {process.returncode}:\n{output[-2000:]}")
    return output


def rate_of(process: subprocess.Popen[str]) -> float:
    """Steps per second of a shard."""
    summary = json.loads(_finish(process).splitlines()[-1])["summary"]
    return float(summary["steps"] / summary["play_s"])


def cartpole(checkpoint: str, episodes: int, lanes: int = LANES) -> dict[str, Any]:
    """A shard of CartPole."""
    return {
        "environment": {"id": "CartPole-v1"},
        "operators": {"ppo": {"worker": "cleanrl", "checkpoint": checkpoint}},
        "lineups": [{"name": "ppo", "agents": {"*": "ppo"}}],
        "play": [{"lineup": "ppo", "episodes": [0, episodes]}],
        "lanes": lanes,
    }


def game_of_two(family: str, moves: int) -> dict[str, Any]:
    """A shard of the game of two, each with a process of its own."""
    operators = {name: {"worker": "cleanrl", "config": {"seed": 1}} for name in ("first", "second")}
    return {
        "environment": {"id": "benches._eval_game", "family": family},
        "operators": operators,
        "lineups": [{"name": "two", "agents": {name: name for name in operators}}],
        "play": [{"lineup": "two", "episodes": [0, max(1, moves // 500)]}],
        "lanes": 1,
    }


def best_ratio(repeat: int, ours: Callable[[], float], theirs: Callable[[], float]) -> float:
    """The best of ours over the best of theirs, measured in turn."""
    pairs = [(ours(), theirs()) for _ in range(repeat)]
    return round(max(mine for mine, _ in pairs) / max(other for _, other in pairs), 2)


def measure_arena(bench: Bench, repeat: int, scale: float) -> dict[str, float]:
    """Every figure of the arena."""
    checkpoint = bench.train()
    steps = int(20_000 * scale)
    batch = best_ratio(
        repeat,
        lambda: rate_of(bench.shard(cartpole(checkpoint, max(LANES, steps // 100)))),
        lambda: bench.measure("cleanrl", "_eval_loop.py", "alone", steps, checkpoint),
    )
    turn, simultaneous = (
        best_ratio(
            repeat,
            lambda family=family: rate_of(bench.shard(game_of_two(family, steps))),  # type: ignore[misc]
            lambda kind=kind: bench.measure("cleanrl", "_eval_loop.py", kind, steps),  # type: ignore[misc]
        )
        for family, kind in (("aec", "turn"), ("parallel", "simultaneous"))
    )
    use = json.dumps(bench.use("baseline"))
    images = [
        bench.measure("arena", "_eval_image.py", use, bench.new_folder(), int(2000 * scale)) for _ in range(repeat)
    ]
    config = cartpole(checkpoint, max(32, steps // 200), lanes=16)

    def both() -> float:
        shards = [bench.shard(config, cpu=cpu) for cpu in (0, 1)]
        with ThreadPoolExecutor(len(shards)) as readers:  # a shard whose output is not read would stand still
            return sum(readers.map(rate_of, shards))

    scaling = best_ratio(repeat, both, lambda: rate_of(bench.shard(config, cpu=0)))
    return {
        "batch_ratio": batch,
        "lockstep_turn_ratio": turn,
        "lockstep_simultaneous_ratio": simultaneous,
        "image_us": round(min(images), 1),
        "shard_scaling": scaling,
    }


def main() -> None:
    """Measure, and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3, help="repetitions (default: 3)")
    parser.add_argument("--scale", type=float, default=1.0, help="how much is measured (default: 1)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure_arena(Bench(Path(folder)), arguments.repeat, arguments.scale)
    report, resume = measure_report(int(100_000 * arguments.scale)), measure_resume(int(200_000 * arguments.scale))
    print(json.dumps({"bench": "eval", **found, **report, **resume}))


if __name__ == "__main__":
    sys.exit(main())
