"""Names and sizes of the files in an attempt's folder, and how they are written.

Supervisor, run host and command line share this module. The run host loads it by path, in a bare interpreter or in a
worker's virtualenv, so it imports only what the run host imports anyway.
"""

import json
import os
from typing import Any

# Written by the supervisor before the worker starts.
PLACED = "placed.json"
WORKER = "worker.json"
ATTEMPT = "attempt.json"
# Written by the supervisor when the attempt is to stop.
STOP = "stop.json"
# Written by the run host.
HOST = "host.json"
HOST_LOCK = "host.lock"
HOST_ERRORS = "host-errors.txt"
FAMILY = "family.json"
WARNINGS = "warnings.json"
EXIT = "exit.json"
# Written by the supervisor when the attempt has ended: the last state of its frame streams.
FRAMES = "frames.json"
# Empty files: every line is stored; the scheduler has recorded the end.
STORED = "stored"
FORGOTTEN = "forgotten"
# A FIFO, made by the run host of an interactive attempt: the worker's stdin.
STDIN = "stdin.fifo"
# Written by the worker, through its stdout and stderr.
JOURNAL = "journal.jsonl"
LOG = "log.txt"

# A log keeps its head, of this size unless a setting says otherwise, and its tail; the run host punches out the middle.
LOG_HEAD_BYTES = 16 * 1024 * 1024
LOG_TAIL_BYTES = 1024 * 1024
# Capacity of the FIFO. Linux allows a user 64 MiB of pipes, enough for 256 interactive attempts; further pipes are
# smaller.
STDIN_BYTES = 256 * 1024


def write_json(path: str, content: dict[str, Any]) -> None:
    """Write a file that is either absent or whole."""
    scratch = f"{path}.new"
    with open(scratch, "w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(scratch, path)


def clock(seconds: float) -> str:
    """Format a duration as `01:00:00`."""
    return f"{int(seconds // 3600):02}:{int(seconds // 60 % 60):02}:{int(seconds % 60):02}"
