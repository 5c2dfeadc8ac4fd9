"""Overhead of starting a run, rates of submitting and listing, and cold against warm starts.

Method. One stack of real services, one host, nothing else running.
- overhead: the stress worker (numpy and pydantic, no torch) is started alternately by `submit` through the platform and
  by spawning the same command in the same environment. Both clocks stop at the time stamp of the `run_started` event.
  The overhead of a round is the difference; p50 and p99 are over all rounds.
- submit: 10,000 runs with `submit_many`, a thousand per command, as `mosaic sweep` does, while the queue is paused. The
  clock stops when the last is acknowledged, which means on disk. `submit_one_per_s`: one `submit` after the other, each
  waiting for its answer.
- list: all 10,000 with one `runs` command, from the request to typed objects; the median of five.
- cold and warm: runs of our `ppo` on CartPole-v1, whose worker writes `run_started` once torch and gymnasium are
  imported and an environment was made. The clock runs from before `submit` to the time stamp of that event. The runs
  are the same but for one variable: a run with two CPUs has OMP_NUM_THREADS=2, so it cannot be forked from a template
  for one. Each round submits one of each kind, one after the other, and waits for its end; first runs are not
  counted. What the run host recorded says whether a run was forked or spawned. The figures are medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from stack import STRESS, Stack, wait_until  # noqa: E402 - the path is set just above

from mosaic_bus.commands import NewRun, PauseQueue, Runs, Submit, SubmitMany  # noqa: E402 - as above
from mosaic_bus.messages import RunSpec  # noqa: E402 - as above
from mosaic_services.environments import build, read_recipe, recipe_for  # noqa: E402 - as above

if TYPE_CHECKING:
    from mosaic_services.environments import Environment

WARM, COLD = "warm", "cold"
CPUS = {WARM: 1, COLD: 2}
PPO = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 512, "seed": 1}


def say(text: str) -> None:
    """Print progress to stderr; stdout holds the result only."""
    print(text, file=sys.stderr, flush=True)


def started_at(journal: Path) -> float:
    """The time stamp of the first event of a journal."""
    return float(json.loads(journal.read_text().partition("\n")[0])["ts"])


def tell_build(step: str, percent: float) -> None:
    """Progress of an environment."""
    say(f"environment: {step} ({percent:.0f} %)")


def time_bare(environment: Environment, folder: Path) -> float:
    """Milliseconds from a bare spawn of the worker to its `run_started`."""
    config, journal = folder / "worker.json", folder / "journal.jsonl"
    config.write_text(json.dumps({"run_id": "bare", "events": 1}))
    with journal.open("wb") as stdout:
        began = time.time()
        command = environment.command("--config", str(config))
        subprocess.run(command, stdout=stdout, stderr=subprocess.DEVNULL, env=environment.environ(), check=True)
    return 1000 * (started_at(journal) - began)


def time_submitted(stack: Stack) -> float:
    """Milliseconds from `submit` of the same worker to its `run_started`."""
    began = time.time()
    run = stack.submit(config={"events": 1})
    stack.wait_final(run)
    stack.wait_stored(run)
    return 1000 * (started_at(stack.journal(run)) - began)


def measure_overhead(folder: Path, rounds: int) -> dict[str, float]:
    """Start the stress worker in turn by the platform and bare: `overhead_ms_p50` and `overhead_ms_p99`."""
    environment = build(read_recipe(STRESS), "default", tell_build)
    folder.mkdir()
    overheads, bares = [], []
    with Stack(folder / "home") as stack:
        time_submitted(stack)
        time_bare(environment, folder)
        for number in range(rounds):
            bares.append(time_bare(environment, folder))
            overheads.append(time_submitted(stack) - bares[-1])
            if number % 10 == 0:
                say(f"round {number + 1}: bare {bares[-1]:.0f} ms, overhead {overheads[-1]:.0f} ms")
    overheads.sort()
    return {
        "overhead_ms_p50": round(statistics.median(overheads), 1),
        "overhead_ms_p99": round(overheads[int(0.99 * (len(overheads) - 1))], 1),
        "bare_ms": round(statistics.median(bares), 1),
    }


def measure_many(folder: Path, count: int) -> dict[str, float]:
    """Submit and list many runs: `submit_per_s`, `submit_one_per_s` and `list_ms`."""

    def spec(number: int) -> RunSpec:
        config, resources = {"events": number % 100}, {"cpus": 0.5, "memory_mb": 128}
        return RunSpec.model_validate(
            {"worker": "stress", "name": f"r{number}", "config": config, "resources": resources, "group": "bench"}
        )

    with Stack(folder) as stack:
        # Once the worker is described, configurations are validated as usual.
        stack.wait_final(stack.submit(config={"events": 1}))
        stack.bus.request("scheduler", PauseQueue(paused=True, reason="bench"))
        began = time.perf_counter()
        for first in range(0, count, 1000):
            runs = [NewRun(spec=spec(number)) for number in range(first, min(first + 1000, count))]
            stack.bus.request("scheduler", SubmitMany(runs=runs), timeout=60)
        many_s = time.perf_counter() - began
        began = time.perf_counter()
        for number in range(200):
            stack.bus.request("scheduler", Submit(spec=spec(number)))
        one_s = time.perf_counter() - began
        times = []
        for _ in range(5):
            began = time.perf_counter()
            found = stack.bus.request("scheduler", Runs(limit=count), timeout=60).runs
            times.append(1000 * (time.perf_counter() - began))
            if len(found) != count:
                sys.exit(f"{len(found)} of {count} runs are listed")
    return {
        "submit_per_s": round(count / many_s),
        "submit_one_per_s": round(200 / one_s),
        "list_ms": round(statistics.median(times), 1),
    }


def time_to_start(stack: Stack, kind: str) -> tuple[float, bool]:
    """Milliseconds from submit to `run_started` of one training, and whether it was forked from a template."""
    began = time.time()
    run = stack.submit(worker="cleanrl", config=PPO, resources={"cpus": CPUS[kind], "memory_mb": 512})
    state = stack.wait_final(run, 120)
    if state.state != "succeeded":
        sys.exit(f"run {run} ({kind}) {state.state}: {state.reason}")
    stack.wait_stored(run)
    host = json.loads((stack.home.runs / run / "1" / "host.json").read_text())
    return 1000 * (started_at(stack.journal(run)) - began), host["warm"]


def measure_warm(folder: Path, rounds: int) -> dict[str, float]:
    """Start trainings in turn, spawned and forked: `cold_ms` and `warm_ms`."""
    times: dict[str, list[float]] = {WARM: [], COLD: []}
    with Stack(folder) as stack:
        build(recipe_for("cleanrl", stack.home), "default", tell_build)
        wait_until("the template is ready", lambda: time_to_start(stack, WARM)[1], 120)
        for number in range(rounds):
            for kind in (COLD, WARM):
                milliseconds, warm = time_to_start(stack, kind)
                if warm is not (kind == WARM):
                    sys.exit(f"a {kind} run was {'forked' if warm else 'spawned'}: see the log of the supervisor")
                times[kind].append(milliseconds)
            say(f"round {number + 1}: cold {times[COLD][-1]:.0f} ms, warm {times[WARM][-1]:.0f} ms")
    return {
        "cold_ms": round(statistics.median(times[COLD]), 1),
        "warm_ms": round(statistics.median(times[WARM]), 1),
        "warm_ms_max": round(max(times[WARM]), 1),
    }


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15, help="pairs of a cold and a warm start")
    parser.add_argument("--starts", type=int, default=60, help="pairs of a start by the platform and a bare one")
    parser.add_argument("--runs", type=int, default=10_000, help="number of runs to submit and list")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mosaic-bench-") as scratch:
        result = measure_overhead(Path(scratch) / "overhead", arguments.starts)
        result |= measure_many(Path(scratch) / "many", arguments.runs)
        result |= measure_warm(Path(scratch) / "warm", arguments.rounds)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
