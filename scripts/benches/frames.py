"""Pictures per second into shared memory, against a bare copy, and how soon another process has the pixels.

Method, for each shape:
- ceiling and writer: one process, in turns of so many pictures each: `numpy.copyto` into a mapped file in shared memory
  with as many slots, and `FrameWriter.write` with all its figures. The ratio is the median of the turns' ratios. No
  reader runs meanwhile.
- torn, bad_header, reader_distinct_fps: a writer flat out, and a reader in another process that copies the newest
  picture as fast as it can. Each picture is of one colour that tells its number, so a reader can tell one that is put
  together from two. `frames` is how many were written in all while somebody read.
- latency: a writer at 60 pictures per second, and the reader, which looks every tenth of a millisecond: from the
  writer's own time stamp, taken before the picture is complete, to the end of the reader's copy.

And for training: steps per second of a rollout in CartPole-v1 with a small network, in the environment of the baseline
worker (see `_frames_training.py`), in turns: without any wrapper, `off`, `single` at 30 pictures per second, and a
`grid` of four at 30 against four without. The time that the environment takes to render is taken off, and given apart
as its share of the time (`render`). The ratios are medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from _frames_reader import PATTERNS

from mosaic_services.environments import build, read_recipe
from mosaic_worker.frames import FrameWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

SHAPES = {"84x84x3": (84, 84, 3), "640x480x3": (480, 640, 3)}
SLOTS = 4
LATENCY_HZ = 60


def say(text: str) -> None:
    """Progress, for people: the result goes to stdout alone."""
    print(text, file=sys.stderr, flush=True)


def patterns(shape: tuple[int, ...]) -> list[np.ndarray[Any, np.dtype[np.uint8]]]:
    """Pictures of one colour each."""
    return [np.full(shape, number, np.uint8) for number in range(PATTERNS)]


def measure_rates(folder: Path, shape: tuple[int, ...], turns: int, frames: int) -> dict[str, float]:
    """The writer against a bare copy, in turns."""
    pictures = patterns(shape)
    size = pictures[0].nbytes
    with (folder / "ceiling").open("w+b") as file:
        os.posix_fallocate(file.fileno(), 0, SLOTS * size)
        mapped = mmap.mmap(file.fileno(), SLOTS * size)
    slots = [np.frombuffer(mapped, np.uint8, size, slot * size).reshape(shape) for slot in range(SLOTS)]
    writer = FrameWriter(folder, "rate", SLOTS)
    for picture in pictures:
        writer.write(picture)
    copies, writes = [], []
    for _ in range(turns):
        began = time.perf_counter()
        for number in range(frames):
            np.copyto(slots[number % SLOTS], pictures[number % PATTERNS])
        copies.append(frames / (time.perf_counter() - began))
        began = time.perf_counter()
        for number in range(frames):
            writer.write(
                pictures[number % PATTERNS], step=number, last_reward=1.0, rolling_return=2.0, step_rate_hz=3.0
            )
        writes.append(frames / (time.perf_counter() - began))
    writer.close()
    ratios = [write / copy for write, copy in zip(writes, copies, strict=True)]
    return {
        "writer_fps": round(statistics.median(writes)),
        "ceiling_fps": round(statistics.median(copies)),
        "ratio": round(statistics.median(ratios), 3),
    }


@contextmanager
def reader(ring: Path, shape: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    """Read in another process while the body runs; afterwards the result is filled in."""
    command = [sys.executable, str(Path(__file__).with_name("_frames_reader.py")), str(ring)]
    process = subprocess.Popen([*command, "--shape", *map(str, shape)], stdout=subprocess.PIPE, text=True)
    seen: dict[str, Any] = {}
    assert process.stdout is not None  # noqa: S101 - for the type checker
    process.stdout.readline()
    try:
        yield seen
    finally:
        process.terminate()
        seen.update(json.loads(process.communicate()[0]))


def measure_reading(folder: Path, shape: tuple[int, ...], frames: int) -> dict[str, Any]:
    """A writer flat out and a reader that checks every picture it gets."""
    pictures = patterns(shape)
    writer = FrameWriter(folder, "flat-out", SLOTS)
    writer.write(pictures[0], step=0)
    with reader(writer.path, shape) as seen:
        for number in range(1, frames):
            writer.write(pictures[number % PATTERNS], step=number)
    writer.close()
    return {
        "frames": frames,
        "reader_distinct_fps": round(seen["fps"]),
        "distinct": seen["distinct"],
        "torn": seen["torn"],
        "bad_header": seen["bad_header"],
    }


def measure_latency(folder: Path, shape: tuple[int, ...], seconds: float) -> dict[str, Any]:
    """A writer at a steady rate and a reader that waits for each picture."""
    pictures = patterns(shape)
    writer = FrameWriter(folder, "steady", SLOTS)
    writer.write(pictures[0], step=0)
    with reader(writer.path, shape) as seen:
        began = time.perf_counter()
        for number in range(1, int(seconds * LATENCY_HZ)):
            time.sleep(max(0.0, began + number / LATENCY_HZ - time.perf_counter()))
            writer.write(pictures[number % PATTERNS], step=number)
    writer.close()
    return {"p50_ms": round(seen["p50_ms"], 3), "p99_ms": round(seen["p99_ms"], 3)}


def measure_training(folder: Path, rounds: int, seconds: float) -> dict[str, Any]:
    """What pictures cost a training loop: steps per second as a ratio of those without any wrapper."""
    recipe = read_recipe(Path(__file__).parents[2] / "workers" / "baseline_worker")
    environment = build(recipe, "default", lambda step, percent: say(f"environment: {step} ({percent:.0f} %)"))
    script = str(Path(__file__).with_name("_frames_training.py"))
    command = [str(environment.python), script, str(folder), str(rounds), str(seconds)]
    done = subprocess.run(command, env=environment.environ(), check=True, capture_output=True, text=True)
    rates = json.loads(done.stdout.splitlines()[-1])

    def ratio(mode: str, bare: str) -> float:
        pairs = zip(rates[mode], rates[bare], strict=True)
        return round(statistics.median(with_it[0] / without[0] for with_it, without in pairs), 3)

    return {
        "steps_per_s": round(statistics.median(rate for rate, _ in rates["none"])),
        "off": ratio("off", "none"),
        "single": ratio("single", "none"),
        "grid": ratio("grid", "none4"),
        "render": {mode: round(statistics.median(share for _, share in rates[mode]), 3) for mode in ("single", "grid")},
    }


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=200_000, help="pictures written while somebody reads")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=7, help="of training with and without pictures")
    arguments = parser.parse_args()
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="mosaic-bench-", dir="/dev/shm") as scratch:
        for name, shape in SHAPES.items():
            folder = Path(scratch)
            result[name] = {
                **measure_rates(folder, shape, arguments.turns, 2000),
                **measure_reading(folder, shape, arguments.frames),
                **measure_latency(folder, shape, 10.0),
            }
            say(f"{name}: {json.dumps(result[name])}")
        result["training"] = measure_training(Path(scratch), arguments.rounds, 2.0)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
