"""Events per second from four workers into SQLite, relative to one loader process.

Method. Each round measures both on the same lines, one after the other:
- platform: four stress workers emit events of about 180 bytes at full speed through real run hosts, supervisor, broker
  and aggregator. The clock runs from the time stamp of the first event to the commit of the last, as announced on the
  bus. Afterwards the stored events are counted and compared with the journals.
- ceiling: a single process, with nothing else running, loads the same lines into the same schema with `orjson.loads`
  and `executemany` (see `_ceiling.py`).
The result is the median of the rounds' ratios, since both figures of a round are taken within seconds. Latency is
measured separately, at 10,000 events/s from four workers: from the time stamp of an event to the moment at which a
subscriber hears that it is committed.
"""

from __future__ import annotations

import argparse
import json
import operator
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from stack import STRESS, Stack, wait_until  # noqa: E402 - the path is set just above

from mosaic_bus import topics  # noqa: E402 - as above
from mosaic_services.environments import build, read_recipe  # noqa: E402 - as above

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mosaic_bus import Message

WORKERS = 4


def say(text: str) -> None:
    """Print progress to stderr; stdout holds the result only."""
    print(text, file=sys.stderr, flush=True)


def submit_all(stack: Stack, events: int, rate: float | None) -> list[str]:
    """Submit the workers."""
    config = {"events": events // WORKERS, "rate": rate}
    return [stack.submit(name=f"bench-{number}", config=config) for number in range(WORKERS)]


def listen_until_stored(listening: Iterator[Message], runs: list[str], lines: int) -> list[tuple[float, str, int]]:
    """Follow the commits until every journal is complete; return (time, run, number) of each."""
    heard, done = [], set()
    for message in listening:
        now = time.time()
        for each in message.payload["positions"]:
            if each["run"] in runs and each["kind"] == "journal":
                heard.append((now, each["run"], each["stored"]["number"]))
                if each["stored"]["number"] >= lines:
                    done.add(each["run"])
        if len(done) == len(runs):
            break
    return heard


def first_event_at(stack: Stack, run: str) -> float:
    """Return the time stamp of a journal's first step."""
    with stack.journal(run).open() as journal:
        next(journal)
        return float(json.loads(next(journal))["ts"])


def count_lost(stack: Stack, runs: list[str]) -> int:
    """Count the lines of the journals that are not stored exactly once."""
    lost = 0
    with sqlite3.connect(stack.home.telemetry_store) as store:
        for run in runs:
            with stack.journal(run).open("rb") as journal:
                written = sum(chunk.count(b"\n") for chunk in iter(lambda: journal.read(1 << 20), b""))
            (stored,) = store.execute(
                "select count(*) from events where id >> 40 ="
                " (select id from streams where run = ? and kind = 'journal')",
                (run,),
            ).fetchone()
            lost += abs(written - stored)
    return lost


def measure_platform(folder: Path, events: int) -> tuple[float, int, list[Path]]:
    """Run one round through the platform; return events per second, lost events and the journals."""
    with Stack(folder) as stack:
        listening = stack.bus.listen(topics.STORED)
        runs = submit_all(stack, events, None)
        heard = listen_until_stored(listening, runs, events // WORKERS + 2)
        started = min(first_event_at(stack, run) for run in runs)
        for run in runs:
            stack.wait_final(run)
        rate = events / (heard[-1][0] - started)
        used = {name: psutil.Process(process.pid).cpu_times() for name, process in stack.processes.items()}
        say("CPU seconds: " + ", ".join(f"{name} {times.user + times.system:.1f}" for name, times in used.items()))
        return rate, count_lost(stack, runs), [stack.journal(run) for run in runs]


def measure_ceiling(folder: Path, journals: list[Path]) -> float:
    """Run one round of the loader in its own process."""
    command = [
        sys.executable,
        str(Path(__file__).with_name("_ceiling.py")),
        str(folder / "ceiling.db"),
        *map(str, journals),
    ]
    return float(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)["per_s"])


def measure_latency(folder: Path, events: int, rate: float) -> list[float]:
    """Return the milliseconds from emission to commit of each event."""
    with Stack(folder) as stack:
        listening = stack.bus.listen(topics.STORED)
        runs = submit_all(stack, events, rate / WORKERS)
        heard = listen_until_stored(listening, runs, events // WORKERS + 2)
        latencies = []
        for run in runs:
            emitted = [json.loads(line)["ts"] for line in stack.journal(run).read_text().splitlines()]
            reached = 0
            for now, name, number in heard:
                if name == run and number > reached:
                    latencies += [1000 * (now - ts) for ts in emitted[reached:number]]
                    reached = number
        for run in runs:
            wait_until("the run ends", lambda run=run: stack.state(run).state == "succeeded")
        return latencies


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    build(read_recipe(STRESS), "default", lambda step, percent: say(f"environment: {step} ({percent:.0f} %)"))
    rates, ceilings, lost = [], [], 0
    for number in range(arguments.rounds):
        with tempfile.TemporaryDirectory(prefix="mosaic-bench-") as scratch:
            rate, missing, journals = measure_platform(Path(scratch) / "home", arguments.events)
            ceiling = measure_ceiling(Path(scratch), journals)
        say(f"round {number + 1}: platform {rate:,.0f}/s, ceiling {ceiling:,.0f}/s, ratio {rate / ceiling:.2f}")
        rates.append(rate)
        ceilings.append(ceiling)
        lost += missing
    with tempfile.TemporaryDirectory(prefix="mosaic-bench-") as scratch:
        latencies = sorted(measure_latency(Path(scratch) / "home", 50_000, 10_000))
    result = {
        "events": arguments.events,
        "lost": lost,
        "events_per_s": round(statistics.median(rates)),
        "ceiling_per_s": round(statistics.median(ceilings)),
        "ratio": round(statistics.median(map(operator.truediv, rates, ceilings)), 3),
        "p50_ms": round(latencies[len(latencies) // 2], 1),
        "p99_ms": round(latencies[int(len(latencies) * 0.99)], 1),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
