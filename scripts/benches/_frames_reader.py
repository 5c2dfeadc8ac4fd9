"""The reader of the frames bench: a process that copies frames as fast as it can and verifies each."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from mosaic_bus.errors import LayoutError
from mosaic_bus.frames import FrameReader

_POLL_S = 0.0001
_WORD_MASK = 2**64 - 1
Pixels = np.ndarray[Any, np.dtype[np.uint8]]


class Sealed:
    """Frames of noise, each with its number and a checksum: the first word is the sum of all others.

    Successive frames in a slot hold different noise, so a torn frame has a wrong sum.
    """

    def __init__(self, shape: tuple[int, ...], count: int = 7) -> None:
        random = np.random.default_rng(0)
        self.frames = [random.integers(0, 256, shape, np.uint8) for _ in range(count)]
        self._words = [each.reshape(-1).view(np.uint64) for each in self.frames]
        self._sums = [int(words[2:].sum()) for words in self._words]

    def frame(self, number: int) -> Pixels:
        """Return frame `number` with its checksum. The array is reused for the next frame."""
        which = number % len(self.frames)
        self._words[which][:2] = ((self._sums[which] + number) & _WORD_MASK, number)
        return self.frames[which]


def is_whole(frame: Pixels, number: int) -> bool:
    """Whether a frame has this number and is intact."""
    words = frame.reshape(-1).view(np.uint64)
    return int(words[1]) == number and int(words[0]) == int(words[1:].sum())


def main() -> None:
    """Read this many frames, or until SIGTERM, then print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ring", type=Path)
    parser.add_argument("count", type=int)
    parser.add_argument("shape", type=int, nargs="+")
    arguments = parser.parse_args()
    done = False

    def end(*_: object) -> None:
        nonlocal done
        done = True

    signal.signal(signal.SIGTERM, end)
    reader = FrameReader(arguments.ring)
    print("ready", flush=True)
    distinct, torn, bad_header, last = 0, 0, 0, -1
    latencies = []
    first_at = last_at = 0.0
    while not done and distinct < arguments.count:
        try:
            frame = reader.latest() if reader.published - 1 != last else None
        except LayoutError:
            bad_header += 1
            frame = None
        if frame is None or frame.number == last:
            time.sleep(_POLL_S)
            continue
        last_at = time.monotonic()
        first_at = first_at or last_at
        latencies.append(1000 * (last_at - frame.monotonic))
        last = frame.number
        distinct += 1
        bad_header += frame.pixels.shape != tuple(arguments.shape) or frame.step != frame.number
        torn += not is_whole(frame.pixels, frame.number)
    latencies.sort()
    result = {
        "distinct": distinct,
        "torn": torn,
        "bad_header": bad_header,
        "fps": distinct / max(last_at - first_at, 1e-9),
        "p50_ms": latencies[len(latencies) // 2] if latencies else None,
        "p99_ms": latencies[int(0.99 * len(latencies))] if latencies else None,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    sys.exit(main())
