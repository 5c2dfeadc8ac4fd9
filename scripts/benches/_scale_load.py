"""The load of the scale bench: a process that writes journals in turn, and one that subscribes many times."""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import sys
import time
from pathlib import Path

import zmq

from mosaic_services.home import StackHome

_SLICE_S = 0.01


def write(folder: Path, seconds: float, rate: int) -> None:
    """Append events to every journal below a folder in turn, `rate` lines a second in all; when told, end all."""
    journals = [path.open("ab", buffering=0) for path in sorted(folder.glob("*/1/journal.jsonl"))]
    filler = "of the usual size, " + "x" * 72
    written, started = 0, time.monotonic()
    while (elapsed := time.monotonic() - started) < seconds:
        while written < elapsed * rate:
            event = {"event": "step", "step": written, "reward": 1.0, "info": {"note": filler}, "ts": time.time()}
            journals[written % len(journals)].write(json.dumps(event).encode() + b"\n")
            written += 1
        time.sleep(_SLICE_S)
    print(json.dumps({"written": written}), flush=True)
    sys.stdin.readline()  # the word to end
    ending = {"code": 0, "signal": None, "stopped": False, "started_at": time.time(), "ended_at": time.time()}
    for journal in journals:
        scratch = Path(journal.name).with_name("exit.json.new")
        scratch.write_text(json.dumps(ending))
        scratch.rename(scratch.with_name("exit.json"))


def subscribe(home: StackHome, count: int, *, slow: bool) -> None:
    """Be `count` subscribers that read everything, and if asked one that never reads; count lines until SIGTERM."""
    context = zmq.Context()
    address = home.address().egress
    poller = zmq.Poller()
    lines: dict[zmq.Socket[bytes], int] = {}
    for _ in range(count):
        socket = context.socket(zmq.SUB)
        socket.setsockopt(zmq.SUBSCRIBE, b"journal.")
        socket.connect(address)
        poller.register(socket, zmq.POLLIN)
        lines[socket] = 0
    if slow:
        sleeper = context.socket(zmq.SUB)
        sleeper.setsockopt(zmq.SUBSCRIBE, b"journal.")
        sleeper.setsockopt(zmq.RCVHWM, 10)
        sleeper.connect(address)
    done = False

    def end(*_: object) -> None:
        nonlocal done
        done = True

    signal.signal(signal.SIGTERM, end)
    print("ready", flush=True)
    while not done:
        for socket, _ in poller.poll(200):
            # All that has come, not one message a turn: asking a hundred sockets costs more than reading.
            with contextlib.suppress(zmq.Again):
                while True:
                    parts = socket.recv_multipart(zmq.NOBLOCK)
                    if parts[0].endswith(b".telemetry."):
                        lines[socket] += parts[3].count(b"\n")
    print(json.dumps({"lines": list(lines.values())}), flush=True)
    context.destroy(linger=0)


def main() -> None:
    """Do one of the two."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=["write", "subscribe"])
    parser.add_argument("home", type=Path)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--rate", type=int, default=10_000)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--slow", action="store_true")
    arguments = parser.parse_args()
    home = StackHome.find(arguments.home)
    if arguments.role == "write":
        sys.stdin.readline()  # the word to begin
        write(home.runs, arguments.seconds, arguments.rate)
    else:
        subscribe(home, arguments.count, slow=arguments.slow)


if __name__ == "__main__":
    main()
