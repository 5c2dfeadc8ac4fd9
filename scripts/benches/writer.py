"""Lines per second of the aggregator's writer alone, fed without a bus, against the loader of the telemetry bench.

Method. Four journals of step events of about 180 bytes, one event in 200 an episode, are cut into batches of at most
128 KiB as the supervisor's bridge does, and put into the inbox of a real writer as fast as it takes them. The clock
runs from the first batch to the report of the last commit. Each round also runs the loader on the same files (see
`_ceiling.py`). The ratio is that of the medians.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from mosaic_bus.messages import Batch
from mosaic_services.telemetry.inbox import Arrival, Inbox
from mosaic_services.telemetry.writer import Report, Writer

STREAMS = 4
BATCH_BYTES = 128 * 1024
STEPS_PER_EPISODE = 200


def write_journal(path: Path, lines: int) -> None:
    """Write a journal such as a worker does."""
    with path.open("w") as file:
        for step in range(lines):
            ts = 1_700_000_000 + step / 1000
            if step % STEPS_PER_EPISODE == STEPS_PER_EPISODE - 1:
                event = {"event": "episode", "episode": step // STEPS_PER_EPISODE, "return": step / 7, "length": 200}
                file.write(json.dumps({**event, "step": step, "ts": ts}, separators=(",", ":")) + "\n")
                continue
            event = {"event": "step", "step": step, "episode": step // STEPS_PER_EPISODE, "reward": step / 3}
            more = {
                "terminated": False,
                "truncated": False,
                "action": step % 5,
                "agent": "agent_0",
                "info": {"x": 0.25},
            }
            file.write(json.dumps({**event, **more, "ts": ts}, separators=(",", ":")) + "\n")


def cut(path: Path, run: str) -> list[Arrival]:
    """Cut a journal into batches of whole lines."""
    arrivals: list[Arrival] = []
    first = offset = 0
    with path.open("rb") as file:
        while lines := file.readlines(BATCH_BYTES - 512):
            data = b"".join(lines)
            batch = Batch(
                host="bench",
                run=run,
                attempt=1,
                kind="journal",
                first=first,
                count=len(lines),
                offset=offset,
                end=offset + len(data),
            )
            arrivals.append(Arrival(batch, data, repair=False))
            first += len(lines)
            offset += len(data)
    return arrivals


def measure_writer(journals: list[Path], store: Path, lines: int) -> float:
    """Feed a writer with the batches of all journals, taking turns; return lines per second."""
    queues = [cut(path, f"{number:026d}") for number, path in enumerate(journals)]
    arrivals = [each for turn in zip(*queues, strict=False) for each in turn]
    arrivals += [each for queue in queues for each in queue[min(map(len, queues)) :]]
    stored = dict.fromkeys((each.batch.run for each in arrivals), 0)
    done = threading.Event()

    def hear(report: Report) -> None:
        for key, (position, _) in report.positions.items():
            stored[key.run] = position.number
        if sum(stored.values()) == lines:
            done.set()

    inbox = Inbox(16 * 1024 * 1024, time.monotonic)
    writer = Writer(store, inbox, hear, time.monotonic, time.time)
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)  # as the service does
    writer.start()
    started = time.perf_counter()
    for arrival in arrivals:
        while not inbox.put(arrival):
            time.sleep(0.001)
    done.wait()
    elapsed = time.perf_counter() - started
    writer.stop()
    return lines / elapsed


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", type=Path, nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        store, *journals = arguments.one
        print(measure_writer(journals, store, arguments.lines))
        return
    writer, ceiling = [], []
    with tempfile.TemporaryDirectory(prefix="mosaic-bench-") as scratch:
        folder = Path(scratch)
        journals = [folder / f"{number}.jsonl" for number in range(STREAMS)]
        for path in journals:
            write_journal(path, arguments.lines // STREAMS)
        size = sum(path.stat().st_size for path in journals) / arguments.lines
        print(f"{arguments.lines} lines of {size:.0f} bytes", file=sys.stderr)
        for number in range(arguments.rounds):
            own = [sys.executable, __file__, "--lines", str(arguments.lines), "--one", str(folder / f"w{number}.db")]
            other = [sys.executable, str(Path(__file__).with_name("_ceiling.py")), str(folder / f"c{number}.db")]
            output = [
                subprocess.run([*each, *map(str, journals)], check=True, capture_output=True, text=True).stdout
                for each in (own, other)
            ]
            writer.append(float(output[0]))
            ceiling.append(float(json.loads(output[1])["per_s"]))
            print(f"round {number + 1}: writer {writer[-1]:,.0f}/s, ceiling {ceiling[-1]:,.0f}/s", file=sys.stderr)
    rates = {"writer_per_s": round(statistics.median(writer)), "ceiling_per_s": round(statistics.median(ceiling))}
    print(json.dumps({**rates, "ratio": round(rates["writer_per_s"] / rates["ceiling_per_s"], 3)}))


if __name__ == "__main__":
    main()
