"""CPU cost per event of each service, as the numbers of streams and subscribers grow.

Method. A real broker, scheduler, supervisor and aggregator carry a fixed total rate of events of about 180 bytes from
1, 10, 100 and 1000 journals. The workers are simulated: one process appends to all journals in turn and acts as the run
host of all attempts, so the supervisor adopts them as after a restart. Everything else is real. Then the same rate from
10 journals goes to 1, 10 and 100 subscribers, and to 10 beside one that never reads.

The cost per event is the CPU time of a service until all events are stored, divided by their number. `idle_percent` is
the share of one CPU that the same streams cost while nothing is written, and is measured first. `memory_mb` is measured
at the end. Every event must be stored (`lost`). `got_least` is the smallest share of lines that a subscriber received:
all subscribers are one process, and a hundred of them can be more than two cores can serve. `growth` is the cost per
event of all services with the most streams, relative to that with 10; `growth_above_idle` is the same without the idle
cost. `slow_cost` is the broker's cost per event beside a subscriber that never reads, relative to that without it (the
median of rounds that measure both), and `slow_lines` is the smallest share of lines that another subscriber received.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from ulid import ULID

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from stack import HOST, SERVICES, STRESS, Stack, wait_until  # noqa: E402 - the path is set just above

from mosaic_bus.commands import Place, Stats  # noqa: E402 - as above
from mosaic_bus.messages import AttemptPhase, Resources, RunSpec, RunStateName  # noqa: E402 - as above
from mosaic_services.attempt_folder import AttemptFolder, AttemptKey  # noqa: E402 - as above
from mosaic_services.attempt_folder.layout import write_json  # noqa: E402 - as above
from mosaic_services.attempt_folder.proc import identity  # noqa: E402 - as above
from mosaic_services.environments import build, read_recipe  # noqa: E402 - as above
from mosaic_services.home import StackHome  # noqa: E402 - as above
from mosaic_services.scheduler.model import Attempt, Run  # noqa: E402 - as above
from mosaic_services.scheduler.store import Store, Unsaved  # noqa: E402 - as above

if TYPE_CHECKING:
    from collections.abc import Iterator

LOAD = str(Path(__file__).with_name("_scale_load.py"))
IDLE_S = 3.0


def say(text: str) -> None:
    """Print progress to stderr; stdout holds the result only."""
    print(text, file=sys.stderr, flush=True)


def start_load(role: str, home: StackHome, *arguments: str) -> subprocess.Popen[str]:
    """Start a process that generates load."""
    command = [sys.executable, LOAD, role, str(home.path), *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def prepare(home: StackHome, streams: int, writer: int) -> list[str]:
    """Make attempts that seem to run, with the writer as their run host; return their runs."""
    spec = RunSpec(worker="stress", resources=Resources(cpus=0.01, memory_mb=1))
    unsaved = Unsaved()
    host = {**identity(writer), "started_at": time.time()}
    for number in range(streams):
        run = str(ULID())
        folder = AttemptFolder(home, AttemptKey(run, 1))
        folder.place(Place(run=run, attempt=1, run_name=f"scale-{number}", spec=spec))
        write_json(str(folder.path / "host.json"), host)
        started = json.dumps({"event": "run_started", "run_id": run, "worker": "stress", "ts": time.time()})
        folder.journal.write_text(started + "\n")
        now = time.time()
        unsaved.runs[run] = Run(
            run, number + 1, spec, f"scale-{number}", now, now, state=RunStateName.RUNNING, host=HOST, started_at=now
        )
        attempt = Attempt(run, 1, HOST, spec.resources, now, acknowledged=True, phase=AttemptPhase.RUNNING)
        unsaved.attempts[run, 1] = attempt
    with closing(Store(home.scheduler_store)) as store:
        store.commit(unsaved)
    return list(unsaved.runs)


def cpu_of(stack: Stack) -> dict[str, float]:
    """Return the CPU seconds that each service has used."""
    times = {name: psutil.Process(process.pid).cpu_times() for name, process in stack.processes.items()}
    return {name: each.user + each.system for name, each in times.items()}


def stored(stack: Stack) -> int:
    """Return how many lines the aggregator has stored."""
    return int(stack.bus.request("telemetry", Stats(), timeout=20).counters["stored"])


@contextmanager
def subscribers(home: StackHome, count: int, *, slow: bool) -> Iterator[dict[str, list[int]]]:
    """Run subscribers during the body; afterwards `lines` holds how many lines each received."""
    got: dict[str, list[int]] = {"lines": []}
    if not count:
        yield got
        return
    process = start_load("subscribe", home, "--count", str(count), *(["--slow"] if slow else []))
    assert process.stdout is not None  # noqa: S101 - for the type checker
    process.stdout.readline()
    try:
        yield got
    finally:
        process.terminate()
        got.update(json.loads(process.communicate()[0]))


def measure(streams: int, count: int, rate: int, seconds: float, *, slow: bool = False) -> dict[str, Any]:
    """Measure one number of streams and subscribers."""
    with tempfile.TemporaryDirectory(prefix="mosaic-bench-") as scratch:
        home = StackHome.find(Path(scratch) / "home")
        home.create()
        writer = start_load("write", home, "--seconds", str(seconds), "--rate", str(rate))
        assert writer.stdin is not None  # noqa: S101 - for the type checker
        assert writer.stdout is not None  # noqa: S101 - for the type checker
        try:
            runs = prepare(home, streams, writer.pid)
            with Stack(home.path) as stack:
                wait_until("the first lines are stored", lambda: stored(stack) >= streams, 60)
                with subscribers(home, count, slow=slow) as got:
                    before, since = cpu_of(stack), time.monotonic()
                    time.sleep(IDLE_S)
                    idle_s = time.monotonic() - since
                    idle = {name: (used - before[name]) / idle_s for name, used in cpu_of(stack).items()}
                    before, since = cpu_of(stack), time.monotonic()
                    writer.stdin.write("go\n")
                    writer.stdin.flush()
                    written = json.loads(writer.stdout.readline())["written"]
                    wait_until("all is stored", lambda: stored(stack) >= written + streams, 120)
                    took = time.monotonic() - since
                    used = {name: each - before[name] for name, each in cpu_of(stack).items()}
                    memory = {
                        name: psutil.Process(each.pid).memory_info().rss for name, each in stack.processes.items()
                    }
                    writer.stdin.write("end\n")
                    writer.stdin.flush()
                    for run in runs:
                        stack.wait_final(run)
                lost = written + streams - stored(stack)
        finally:
            writer.kill()
            writer.wait()
    result = {
        "streams": streams,
        "subscribers": count,
        "events": written,
        "lost": lost,
        "us_per_event": {name: round(1e6 * used[name] / written, 2) for name in SERVICES},
        "above_idle_us": round(1e6 * sum(used[name] - took * idle[name] for name in SERVICES) / written, 2),
        "idle_percent": {name: round(100 * idle[name], 1) for name in SERVICES},
        "memory_mb": {name: round(memory[name] / 2**20, 1) for name in SERVICES},
        "got_least": min(got["lines"], default=written) / written,
    }
    say(json.dumps(result))
    return result


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=10_000, help="events per second in all")
    parser.add_argument("--seconds", type=float, default=8.0, help="for each case")
    parser.add_argument("--rounds", type=int, default=3, help="with and without a slow subscriber")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 10, 100, 1000])
    parser.add_argument("--subscribers", type=int, nargs="+", default=[1, 10, 100])
    arguments = parser.parse_args()
    build(read_recipe(STRESS), "default", lambda step, percent: say(f"environment: {step} ({percent:.0f} %)"))
    rate, seconds = arguments.rate, arguments.seconds
    by_streams = [measure(streams, 0, rate, seconds) for streams in arguments.streams]
    by_subscribers = [measure(10, count, rate, seconds) for count in arguments.subscribers]
    pairs = [
        (measure(10, 10, rate, seconds), measure(10, 10, rate, seconds, slow=True)) for _ in range(arguments.rounds)
    ]
    beside = [each for each, _ in pairs]
    slow = [each for _, each in pairs]
    cost = {each["streams"]: sum(each["us_per_event"].values()) for each in (*beside, *by_streams)}
    above_idle = {each["streams"]: each["above_idle_us"] for each in (*beside, *by_streams)}
    print(
        json.dumps(
            {
                "rate": rate,
                "by_streams": by_streams,
                "by_subscribers": by_subscribers,
                "slow_subscriber": slow,
                "growth": round(cost[max(cost)] / cost[10], 2),
                "growth_above_idle": round(above_idle[max(cost)] / above_idle[10], 2),
                "slow_cost": round(
                    statistics.median(s["us_per_event"]["broker"] / b["us_per_event"]["broker"] for b, s in pairs), 2
                ),
                "slow_lines": round(min(each["got_least"] for each in slow), 4),
                "lost": sum(each["lost"] for each in (*by_streams, *by_subscribers, *beside, *slow)),
            }
        )
    )


if __name__ == "__main__":
    main()
