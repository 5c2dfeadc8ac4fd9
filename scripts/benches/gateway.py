"""Milliseconds of CPU time in which the store answers for a curve, whole and zoomed; and whether spikes are kept.

Method. Two stores are filled with journals of steps, of 1,000,000 and of 10,000,000 lines, through the aggregator's own
store. Spikes are planted at random lines of the first. Each figure is the median CPU time of the thread that answers,
so that a busy machine does not change it much:
- series_ms: the whole curve of 1,000,000 points, thinned to 2,000.
- zoom_ms: 1 % of its steps, thinned to 2,000.
- scale_ratio: the same as series_ms for ten times as many points, divided by it.
- spikes: how many of the planted spikes an answer of 2,000 points shows, each found by zooming in to its bucket.

Then, with a real stack, Chromium and pages (`_gateway_pages.py`; --store-only leaves them out):
- first_paint_ms: wall time from the address to the first painted row of the table, with 500 stored runs.
- paint_ratio: the same with 5,000 runs, divided by it.
- frame_p50_ms: from the publication of a 640x480 frame by its worker to its drawing on the canvas.
- js_kb: the page's scripts, gzipped.
- stream_events_per_s, fairness: events that twenty pages receive together while a run emits 8,000 a second; the slowest
  page divided by the fastest.
- training_ratio: steps per second of a run that twenty pages follow, divided by those without any page, in turns. The
  pages, which would be on other machines, take only what is left of one CPU.
Wall times depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from mosaic_bus.commands import Series
from mosaic_services.telemetry.columns import read_journal
from mosaic_services.telemetry.queries import Queries
from mosaic_services.telemetry.store import Store
from mosaic_services.telemetry.streams import StreamKey

if TYPE_CHECKING:
    from mosaic_bus.commands import Curve

MAX_POINTS = 2000
SPIKE = 1e6
BATCH = 5000
ROUNDS = 11


def say(text: str) -> None:
    """Print progress to stderr; stdout holds the result only."""
    print(text, file=sys.stderr, flush=True)


def fill(path: Path, points: int, spikes: dict[int, float]) -> Queries:
    """Store a journal of steps."""
    store = Store(path)
    store.open()
    entry = store.find(StreamKey("run", 1, "journal"), "host")
    for first in range(0, points, BATCH):
        lines = "".join(
            f'{{"event":"step","step":{step},"reward":{spikes.get(step, step % 97)},"ts":{1e9 + step}}}\n'
            for step in range(first, first + BATCH)
        )
        entry.stream.offer(first, BATCH, 0, repair=False, now=0.0)
        store.begin()
        store.add_journal(entry.id, first, read_journal(lines.encode()))
        store.save(entry, 0.0)
        store.commit()
    store.close()
    return Queries(path)


def ask(queries: Queries, first: int | None = None, last: int | None = None) -> Curve:
    """Read the curve between two steps."""
    command = Series(runs=["run"], metrics=["reward"], max_points=MAX_POINTS, first_step=first, last_step=last)
    return queries.series(command).only


def cpu_ms(queries: Queries, first: int | None = None, last: int | None = None) -> float:
    """Return the median CPU time of a question."""
    times = []
    for _ in range(ROUNDS):
        began = time.thread_time()
        ask(queries, first, last)
        times.append(1000 * (time.thread_time() - began))
    return statistics.median(times)


def find_spikes(queries: Queries, points: int) -> set[float]:
    """Find all spikes as a person would: look at the whole curve, then zoom in to every bucket that has one."""
    found: set[float] = set()
    spans = [(0, points - 1)]
    while spans:
        first, last = spans.pop()
        curve = ask(queries, first, last)
        single = [high for count, high in zip(curve.counts, curve.highs, strict=True) if count == 1 and high >= SPIKE]
        found.update(single)
        middles = curve.steps
        for index, (count, high) in enumerate(zip(curve.counts, curve.highs, strict=True)):
            if count > 1 and high >= SPIKE:
                spans.append((max(first, middles[index] - count), min(last, middles[index] + count)))
    return found


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--spikes", type=int, default=1000)
    parser.add_argument("--store-only", action="store_true", help="leave out what needs a browser")
    parser.add_argument("--pages-only", action="store_true", help="leave out the store")
    arguments = parser.parse_args()
    result: dict[str, float] = {} if arguments.pages_only else measure_store(arguments.points, arguments.spikes)
    if not arguments.store_only:
        from _gateway_pages import measure  # noqa: PLC0415 - needs the packages of scripts/setup --dev

        result |= measure(say)
    print(json.dumps(result))


def measure_store(points: int, count: int) -> dict[str, float]:
    """Return the figures of the store alone."""
    planted = random.Random(1).sample(range(points), count)
    spikes = {step: SPIKE + place for place, step in enumerate(planted)}
    with tempfile.TemporaryDirectory(prefix="mosaic-bench-") as scratch:
        say(f"storing {points:,} points")
        queries = fill(Path(scratch) / "one.db", points, spikes)
        series_ms = cpu_ms(queries)
        zoom_ms = cpu_ms(queries, points // 2, points // 2 + points // 100)
        found = find_spikes(queries, points)
        say(f"storing {10 * points:,} points")
        large_ms = cpu_ms(fill(Path(scratch) / "ten.db", 10 * points, {}))
    return {
        "series_ms": round(series_ms, 1),
        "zoom_ms": round(zoom_ms, 1),
        "scale_ratio": round(large_ms / series_ms, 2),
        "spikes": len(found & set(spikes.values())),
    }


if __name__ == "__main__":
    main()
