"""Milliseconds from submit to `run_started`: a run that imports torch, forked from a template against spawned.

Method. One stack of real services, one host, nothing else running. The worker is tests/workers/torch_worker: it says
`run_started` once torch and gymnasium are imported and an environment is made. Its two profiles have the same packages
and the same code; one has a template (`warm`), the other has not. The clock runs from before `submit` is sent to the
time stamp of the `run_started` event, both of this machine's clock. Each round submits one run of each kind, one after
the other, and waits until it has ended before the next; a first run of each is not counted. That a run was forked, or
spawned, is checked by what its run host recorded. The figures are medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from stack import Stack, wait_until  # noqa: E402 - the path is set just above

from mosaic_services.environments import build, read_recipe  # noqa: E402 - as above

TORCH = ROOT / "tests" / "workers" / "torch_worker"
WARM, COLD = "default", "cold"


def say(text: str) -> None:
    """Progress, for people: the result goes to stdout alone."""
    print(text, file=sys.stderr, flush=True)


def time_to_start(stack: Stack, profile: str) -> tuple[float, bool]:
    """Milliseconds from submit to `run_started` of one run with torch, and whether it was forked from a template."""
    began = time.time()
    run = stack.submit(worker="torch", profile=profile, config={"updates": 2}, resources={"cpus": 1, "memory_mb": 512})
    state = stack.wait_final(run, 120)
    if state.state != "succeeded":
        sys.exit(f"run {run} ({profile}) {state.state}: {state.reason}")
    stack.wait_stored(run)
    started = json.loads(stack.journal(run).read_text().partition("\n")[0])
    host = json.loads((stack.home.runs / run / "1" / "host.json").read_text())
    return 1000 * (started["ts"] - began), host["warm"]


def measure_warm(folder: Path, rounds: int) -> dict[str, float]:
    """Start runs with torch in turn, spawned and forked: `cold_ms` and `warm_ms`."""
    recipe = read_recipe(TORCH)
    for profile in (WARM, COLD):
        build(recipe, profile, lambda step, percent: say(f"environment: {step} ({percent:.0f} %)"))
    times: dict[str, list[float]] = {WARM: [], COLD: []}
    with Stack(folder, environ={"MOSAIC_WORKERS": str(TORCH)}) as stack:
        time_to_start(stack, COLD)
        wait_until("the template is ready", lambda: time_to_start(stack, WARM)[1], 120)
        for number in range(rounds):
            for profile, wanted in ((COLD, False), (WARM, True)):
                milliseconds, warm = time_to_start(stack, profile)
                if warm is not wanted:
                    sys.exit(f"a run of the profile {profile!r} was {'forked' if warm else 'spawned'}: see its log")
                times[profile].append(milliseconds)
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
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mosaic-bench-") as scratch:
        result = measure_warm(Path(scratch) / "home", arguments.rounds)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
