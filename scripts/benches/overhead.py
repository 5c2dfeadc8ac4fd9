"""Cost of the platform for a training: steps per second of a script under it, relative to the bare script.

Method. Two single-file scripts in the shape of CleanRL's ppo.py and dqn.py (workers/cleanrl_worker/tests/shapes) train
on CartPole-v1 in the cleanrl worker's own virtualenv, with one thread each. Bare: started by hand, nothing else
running but the idle services. Under the platform: submitted to real services, hooked, every episode and scalar
reported, bridged and stored (as algorithms of a checkout; ppo under the name of pqn, since `ppo` names our own); and
ppo once more with live frames of one environment, at most 30 a second. Each script measures its own steps per second
over its training loop but the first fifth (imports, the first frame), and prints them. A round runs all five, one
after the other, in an order that is turned by one each time; a ratio is the median over the rounds of under over bare
in the same round. The time to render is part of `ppo_fastlane_ratio`.

A shared machine changes its speed by a third within a minute, so each script also stops after every update (dqn: every
500 steps) to do a fixed piece of its own work, left out of its rate, and takes the computing time of that. The ratios
are of steps per second times that time: of steps in the time of so much work. Waiting, for a core that the services
are using too, still counts against the platform, since the steps are timed by the clock. `clock` has the same ratios
without the correction.

`xuance_ratio` is of the xuance worker, which imports XuanCe and reports from its callbacks. VDN trains on
simple_spread_v3 with the settings of configs/runs/vdn-spread.yaml, by XuanCe alone (own environments, no callback)
and as the worker does it (every episode, the losses and a checkpoint), in turns, in one process of the worker's
virtualenv (_xuance_rounds.py). It is the ratio of the median rates of steps per second of CPU time.

`rllib_ratio` is the same of the ray worker (_rllib_rounds.py): PPO on CartPole-v1 with the settings of
configs/runs/rllib-cartpole.yaml, by RLlib alone and as the worker does it, on one Ray, environments in the driver.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from stack import Stack  # noqa: E402 - the path is set just above

from mosaic_bus import topics  # noqa: E402 - as above
from mosaic_bus.messages import RunState  # noqa: E402 - as above
from mosaic_services.environments import build, recipe_for, remember_upstream  # noqa: E402 - as above

if TYPE_CHECKING:
    from collections.abc import Callable

    from mosaic_services.environments import Environment
    from mosaic_services.home import StackHome

SHAPES = ROOT / "workers" / "cleanrl_worker" / "tests" / "shapes"
STEPS = {"ppo": 25_000, "dqn": 12_000, "xuance": 5_000, "rllib": 5_000}
SHORT_ROUNDS = 4
"""Rounds of XuanCe and RLlib in place of one: short ones, so that both ways meet the same load of the machine."""
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_RATES = re.compile(r"steps per second: ([0-9.]+), per ruler: ([0-9.]+)")
Rates = tuple[float, float]


def say(text: str) -> None:
    """Print progress to stderr; stdout holds the result only."""
    print(text, file=sys.stderr, flush=True)


def rates_of(output: str, what: str) -> Rates:
    """What a script printed: steps per second, and per ruler."""
    found = _RATES.findall(output)
    if not found:
        raise SystemExit(f"{what} printed no steps per second; its last lines:\n{output[-2000:]}")
    return float(found[-1][0]), float(found[-1][1])


class Bench:
    """The two scripts, bare and under a stack."""

    def __init__(self, stack: Stack, environment: Environment, folder: Path, scale: float) -> None:
        self._stack = stack
        self._environment = environment
        self._folder = folder
        self._steps = {name: int(count * scale) for name, count in STEPS.items()}

    def bare(self, name: str) -> Rates:
        """Run a script by hand."""
        command = [str(self._environment.python), str(SHAPES / "cleanrl" / f"{name}.py"), "--seed", "1"]
        ended = subprocess.run(
            [*command, "--total-timesteps", str(self._steps[name])],
            cwd=self._folder,
            env={**self._environment.environ(), **ONE_THREAD, "PYTHONPATH": str(SHAPES)},
            capture_output=True,
            text=True,
            check=False,
        )
        return rates_of(ended.stdout + ended.stderr, f"{name}, bare,")

    def under(self, name: str, **extras: object) -> Rates:
        """Run it through the platform."""
        algo = "pqn" if name == "ppo" else name
        config = {"algo": algo, "env_id": "CartPole-v1", "total_timesteps": self._steps[name], "seed": 1}
        run = self._stack.submit(
            worker="cleanrl", config={**config, "extras": extras}, resources={"cpus": 1, "memory_mb": 1024}
        )
        state = self._end_of(run)
        log = (self._stack.home.runs / run / "1" / "log.txt").read_text()
        if state.state != "succeeded":
            raise SystemExit(f"{name} under the platform: {state.reason}\n{log[-2000:]}")
        return rates_of(log, f"{name} under the platform")

    def _end_of(self, run: str) -> RunState:
        """Wait for a message: polling would load the services and distort the measurement."""
        for message in self._stack.bus.listen(topics.run_state(run), timeout=600):
            state = RunState.model_validate(message.payload)
            if state.state in {"succeeded", "failed"}:
                return state
        raise SystemExit(f"run {run} did not end within 10 minutes")


def of_cleanrl(stack: Stack, folder: Path, rounds: int, scale: float) -> dict[str, Any]:
    """Measure scripts that know nothing of the platform."""
    checkout = folder / "checkout"
    shutil.copytree(SHAPES, checkout)
    shutil.copy(checkout / "cleanrl" / "ppo.py", checkout / "cleanrl" / "pqn.py")
    remember_upstream("cleanrl", stack.home, checkout)
    bench = Bench(stack, environment_of("cleanrl", stack.home), folder, scale)
    cases: list[tuple[str, Callable[[], Rates]]] = [
        ("ppo_bare", lambda: bench.bare("ppo")),
        ("ppo", lambda: bench.under("ppo")),
        ("ppo_fastlane", lambda: bench.under("ppo", fastlane_video_mode="single", fastlane_interval_ms=33)),
        ("dqn_bare", lambda: bench.bare("dqn")),
        ("dqn", lambda: bench.under("dqn")),
    ]
    found: list[dict[str, Rates]] = []
    for number in range(rounds):
        turned = cases[number % len(cases) :] + cases[: number % len(cases)]
        found.append({name: run() for name, run in turned})
        say(f"round {number + 1}: " + ", ".join(f"{name} {found[-1][name][0]:,.0f}/s" for name, _ in cases))

    def ratio(name: str, by: int) -> float:
        bare = f"{name.removesuffix('_fastlane')}_bare"
        return round(statistics.median(each[name][by] / each[bare][by] for each in found), 3)

    under = ("ppo", "dqn", "ppo_fastlane")
    return {
        **{f"{name}_ratio": ratio(name, 1) for name in under},
        "clock": {f"{name}_ratio": ratio(name, 0) for name in under},
        "rounds": found,
    }


def of_library(worker: str, library: str, run: str, home: StackHome, rounds: int, scale: float) -> dict[str, Any]:
    """Measure a worker that has its library in its own process, with the settings of a run."""
    environment = environment_of(worker, home)
    config = yaml.safe_load((ROOT / "configs" / "runs" / f"{run}.yaml").read_text())["config"]
    script = Path(__file__).with_name(f"_{library}_rounds.py")
    steps = int(STEPS[library] * scale)
    config |= {"checkpoint_every": steps}
    ended = subprocess.run(
        [str(environment.python), str(script), json.dumps(config), str(steps), str(SHORT_ROUNDS * rounds)],
        cwd=home.path,
        env=environment.environ(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: list[dict[str, Rates]] = json.loads(ended.stdout.splitlines()[-1])

    def ratio(by: int) -> float:
        worker, alone = (statistics.median(each[way][by] for each in found) for way in ("worker", "alone"))
        return round(worker / alone, 3)

    return {f"{library}_ratio": ratio(0), "clock": {f"{library}_ratio": ratio(1)}, "rounds": found}


def environment_of(worker: str, home: StackHome) -> Environment:
    """Build a worker's environment if it is not there."""
    return build(recipe_for(worker, home), "default", lambda step, _: say(f"environment: {step}"))


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--scale", type=float, default=1.0, help="of the steps of each training")
    parser.add_argument("--only", choices=["cleanrl", "xuance", "ray"], help="measure one of the workers")
    arguments = parser.parse_args()
    # Inherited by services and scripts, so that both kinds of runs have the same number of threads.
    os.environ.update(ONE_THREAD)
    result: dict[str, Any] = {"clock": {}, "rounds": {}}
    with tempfile.TemporaryDirectory(prefix="mosaic-bench-") as folder, Stack(Path(folder) / "home") as stack:
        size = stack.home, arguments.rounds, arguments.scale
        ways: dict[str, Callable[[], dict[str, Any]]] = {
            "cleanrl": lambda: of_cleanrl(stack, Path(folder), arguments.rounds, arguments.scale),
            "xuance": lambda: of_library("xuance", "xuance", "vdn-spread", *size),
            "ray": lambda: of_library("ray", "rllib", "rllib-cartpole", *size),
        }
        for worker, measure in ways.items():
            if arguments.only in (None, worker):
                found = measure()
                result["clock"] |= found.pop("clock")
                result["rounds"][worker] = found.pop("rounds")
                result |= found
    print(json.dumps(result))


if __name__ == "__main__":
    main()
