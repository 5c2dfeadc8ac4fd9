"""The reader of the frames bench: a process of its own that copies pictures as fast as it can and checks each one."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
from pathlib import Path

from mosaic_bus.frames import FrameReader

PATTERNS = 8
_POLL_S = 0.0001


def main() -> None:
    """Read until SIGTERM, then print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ring", type=Path)
    parser.add_argument("--shape", type=int, nargs="+", required=True)
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
    while not done:
        frame = reader.latest() if reader.published - 1 != last else None
        if frame is None or frame.number == last:
            time.sleep(_POLL_S)
            continue
        last_at = time.monotonic()
        first_at = first_at or last_at
        latencies.append(1000 * (last_at - frame.monotonic))
        last = frame.number
        distinct += 1
        # Every picture is of one colour, which tells its number, and its step is its number.
        wanted = frame.number % PATTERNS
        bad_header += frame.picture.shape != tuple(arguments.shape) or frame.step != frame.number
        torn += int(frame.picture.min()) != wanted or int(frame.picture.max()) != wanted
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
