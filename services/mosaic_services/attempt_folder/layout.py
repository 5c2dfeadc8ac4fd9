"""What supervisor, run host and command line agree on: names of files in an attempt's folder, and how they are written.

The run host loads this file by its path, in a bare interpreter or in a worker's virtualenv, so it imports only what the
run host imports anyway.
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
# A FIFO, made by the run host of an interactive attempt: the worker's stdin.
STDIN = "stdin.fifo"
# Written by the worker, through its stdout and stderr.
JOURNAL = "journal.jsonl"
LOG = "log.txt"

# A log keeps its head and its tail; the run host gives the middle back to the disk.
LOG_HEAD_BYTES = 16 * 1024 * 1024
LOG_TAIL_BYTES = 1024 * 1024
# What a FIFO can hold. Linux lets one user have 64 MiB of pipes: enough for 256 interactive attempts, and further ones
# get smaller pipes.
STDIN_BYTES = 256 * 1024

_DEAD = (b"Z", b"X")


def write_json(path: str, content: dict[str, Any]) -> None:
    """Write a file that is either absent or whole."""
    scratch = f"{path}.new"
    with open(scratch, "w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(scratch, path)


def process_stat(pid: int | str) -> list[bytes]:
    """Read `/proc/<pid>/stat`: the fields after the command, from the state on."""
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rsplit(b")", 1)[1].split()


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


_BOOT = _boot()


def identity(pid: int) -> dict[str, Any]:
    """Name one process for ever: its pid, its start time in clock ticks since boot, and which boot that was."""
    return {"pid": pid, "start_time": int(process_stat(pid)[19]), "boot": _BOOT}


def is_alive(process: dict[str, Any]) -> bool:
    """Whether the process with this identity still runs, and not another one with the same pid."""
    try:
        fields = process_stat(process["pid"])
        same = int(fields[19]) == process["start_time"] and process.get("boot", _BOOT) == _BOOT
        return same and fields[0] not in _DEAD
    except (OSError, ValueError, IndexError, KeyError, TypeError):
        return False


def clock(seconds: float) -> str:
    """Write a duration as `01:00:00`."""
    return f"{int(seconds // 3600):02}:{int(seconds // 60 % 60):02}:{int(seconds % 60):02}"
