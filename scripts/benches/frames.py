"""Frames per second into shared memory, relative to a bare copy, and latency to another process.

Method, for each shape:
- ceiling and writer: one process, in turns of equally many frames: `numpy.copyto` into a mapped file in shared memory
  with as many slots, and `FrameWriter.write` with all its figures. The ratio is the median of the turns' ratios. No
  reader runs meanwhile.
- torn, bad_header, reader_distinct_fps: a writer flat out, and a reader in another process that copies the newest
  frame as fast as it can and checks it. Each frame is noise that carries its number and a checksum of itself, so
  that one put together from two is found out. It goes on until `frames` different frames have been read and checked;
  `written` is how many the writer made meanwhile. A bad header is a ring that was refused, or a shape or step that
  does not belong to the frame.
- latency: a writer at 60 frames per second, and the reader, which looks every tenth of a millisecond: from the
  writer's own time stamp, taken before the frame is complete, to the end of the reader's copy.

And for training: steps per second of a rollout in CartPole-v1 with a small network, in the environment of the baseline
worker (see `_frames_training.py`), in turns whose order is drawn anew each time: without any wrapper, `off`, `single`
at 30 frames per second, and a `grid` of four at 30 against four without. The time that the environment takes to
render is taken off, and given apart as its share of the time (`render`). The ratios are medians over many short rounds,
since the speed of a shared machine changes from one second to the next.
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
from _frames_reader import Sealed

from mosaic_services.environments import build, read_recipe
from mosaic_worker.frames.ring import FrameWriter

if TYPE_CHECKING:
    from collections.abc import Iterator

SHAPES = {"84x84x3": (84, 84, 3), "640x480x3": (480, 640, 3)}
SLOTS = 4
LATENCY_HZ = 60


def say(text: str) -> None:
    """Print progress to stderr; stdout holds the result only."""
    print(text, file=sys.stderr, flush=True)


def measure_rates(folder: Path, shape: tuple[int, ...], turns: int, frames: int) -> dict[str, float]:
    """The writer against a bare copy, in turns."""
    noise = Sealed(shape).frames
    size, count = noise[0].nbytes, len(noise)
    with (folder / "ceiling").open("w+b") as file:
        os.posix_fallocate(file.fileno(), 0, SLOTS * size)
        mapped = mmap.mmap(file.fileno(), SLOTS * size)
    slots = [np.frombuffer(mapped, np.uint8, size, slot * size).reshape(shape) for slot in range(SLOTS)]
    writer = FrameWriter(folder, "rate", SLOTS)
    for frame in noise:
        writer.write(frame)
    copies, writes = [], []
    for _ in range(turns):
        began = time.perf_counter()
        for number in range(frames):
            np.copyto(slots[number % SLOTS], noise[number % count])
        copies.append(frames / (time.perf_counter() - began))
        began = time.perf_counter()
        for number in range(frames):
            writer.write(noise[number % count], step=number, last_reward=1.0, rolling_return=2.0, step_rate_hz=3.0)
        writes.append(frames / (time.perf_counter() - began))
    writer.close()
    ratios = [write / copy for write, copy in zip(writes, copies, strict=True)]
    return {
        "writer_fps": round(statistics.median(writes)),
        "ceiling_fps": round(statistics.median(copies)),
        "ratio": round(statistics.median(ratios), 3),
    }


@contextmanager
def reader(ring: Path, shape: tuple[int, ...], count: int) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """Read so many frames, or as long as the body runs, in another process; afterwards the result is filled in."""
    command = [sys.executable, str(Path(__file__).with_name("_frames_reader.py")), str(ring), str(count)]
    process = subprocess.Popen([*command, *map(str, shape)], stdout=subprocess.PIPE, text=True)
    seen: dict[str, Any] = {}
    assert process.stdout is not None  # noqa: S101 - for the type checker
    process.stdout.readline()
    try:
        yield process, seen
    finally:
        process.terminate()
        seen.update(json.loads(process.communicate()[0]))


def measure_reading(folder: Path, shape: tuple[int, ...], frames: int) -> dict[str, Any]:
    """A writer flat out and a reader that checks every frame it gets."""
    sealed = Sealed(shape)
    writer = FrameWriter(folder, "flat-out", SLOTS)
    writer.write(sealed.frame(0), step=0)
    with reader(writer.path, shape, frames) as (process, seen):
        while process.poll() is None:
            for number in range(writer.published, writer.published + 1000):
                writer.write(sealed.frame(number), step=number)
    writer.close()
    return {
        "frames": seen["distinct"],
        "written": writer.published,
        "reader_distinct_fps": round(seen["fps"]),
        "torn": seen["torn"],
        "bad_header": seen["bad_header"],
    }


def measure_latency(folder: Path, shape: tuple[int, ...], seconds: float) -> dict[str, Any]:
    """A writer at a steady rate and a reader that waits for each frame."""
    sealed = Sealed(shape)
    writer = FrameWriter(folder, "steady", SLOTS)
    writer.write(sealed.frame(0), step=0)
    with reader(writer.path, shape, 10**9) as (_, seen):
        began = time.perf_counter()
        for number in range(1, int(seconds * LATENCY_HZ)):
            time.sleep(max(0.0, began + number / LATENCY_HZ - time.perf_counter()))
            writer.write(sealed.frame(number), step=number)
    writer.close()
    return {"p50_ms": round(seen["p50_ms"], 3), "p99_ms": round(seen["p99_ms"], 3)}


def measure_training(folder: Path, rounds: int, seconds: float) -> dict[str, Any]:
    """What frames cost a training loop: steps per second as a ratio of those without any wrapper."""
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
    parser.add_argument("--frames", type=int, default=200_000, help="frames of each shape that are read and checked")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--rounds", type=int, default=60, help="of training with and without frames")
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
        result["training"] = measure_training(Path(scratch), arguments.rounds, 0.25)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
