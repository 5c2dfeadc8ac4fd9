"""The reader of the frames bench: a process of its own that copies pictures as fast as it can and checks each one."""

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
Picture = np.ndarray[Any, np.dtype[np.uint8]]


class Sealed:
    """Pictures of noise, each with its number and a checksum: the first word is the sum of all others.

    Pictures that follow each other in a slot are different noise, so what is put together from them has another sum.
    """

    def __init__(self, shape: tuple[int, ...], count: int = 7) -> None:
        random = np.random.default_rng(0)
        self.pictures = [random.integers(0, 256, shape, np.uint8) for _ in range(count)]
        self._words = [picture.reshape(-1).view(np.uint64) for picture in self.pictures]
        self._sums = [int(words[2:].sum()) for words in self._words]

    def picture(self, number: int) -> Picture:
        """Return picture `number`, sealed; it is changed when this is asked for another."""
        which = number % len(self.pictures)
        self._words[which][:2] = ((self._sums[which] + number) & _WORD_MASK, number)
        return self.pictures[which]


def is_whole(picture: Picture, number: int) -> bool:
    """Whether a picture is the one of that number, and all of it."""
    words = picture.reshape(-1).view(np.uint64)
    return int(words[1]) == number and int(words[0]) == int(words[1:].sum())


def main() -> None:
    """Read so many pictures, or until SIGTERM, then print what was seen."""
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
        bad_header += frame.picture.shape != tuple(arguments.shape) or frame.step != frame.number
        torn += not is_whole(frame.picture, frame.number)
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
