"""Run hosts as processes: start one, learn of its end, stop it, signal its worker, end what a dead one left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic_services import processes
from mosaic_services.attempt_folder.layout import HOST_ERRORS
from mosaic_services.attempt_folder.proc import is_alive, process_stat
from mosaic_services.supervisor import run_host

if TYPE_CHECKING:
    from mosaic_services.attempt_folder import AttemptFolder

__all__ = ["open_end", "signal_worker", "start", "stop", "sweep"]


def start(folder: AttemptFolder, environ: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a run host, which outlives the supervisor, and send it the worker's environment variables."""
    with (folder.path / HOST_ERRORS).open("ab") as errors:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", run_host.__file__, str(folder.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
            env={},
        )
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
            pipe.write(json.dumps(environ).encode())
    return process


def open_end(host: dict[str, Any]) -> int | None:
    """Return a descriptor that becomes readable when a run host ends; None if it has ended or pidfds are missing."""
    try:
        end = os.pidfd_open(host["pid"])
    except (AttributeError, OSError):
        return None
    if is_alive(host):  # Checked after opening: now the pid cannot be reused unnoticed.
        return end
    os.close(end)
    return None


def stop(host: dict[str, Any]) -> None:
    """Send SIGTERM to a run host, which stops its worker."""
    if is_alive(host):
        with contextlib.suppress(ProcessLookupError):
            os.kill(host["pid"], signal.SIGTERM)


def signal_worker(host: dict[str, Any], number: int) -> bool:
    """Send a signal to the worker of a run host; return False if it does not handle the signal, which may end it."""
    pid = _worker_of(host["pid"]) if is_alive(host) else None
    if pid is None:
        return False
    with contextlib.suppress(OSError):  # It may end at any moment.
        process = os.pidfd_open(pid)
        try:
            if _handles(pid, number):
                signal.pidfd_send_signal(process, number)
                return True
        finally:
            os.close(process)
    return False


def _worker_of(host: int) -> int | None:
    """Find the worker: the oldest child that leads a session. A run host adopts others later."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = process_stat(path.name)
                if (int(fields[1]), int(fields[3])) == (host, int(path.name)):
                    found.append((int(fields[19]), int(path.name)))
    return min(found)[1] if found else None


def _handles(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("SigCgt:"):
            return bool(int(line.split()[1], 16) >> (number - 1) & 1)
    return False


def sweep(folder: AttemptFolder) -> int:
    """Kill every process of an attempt; return how many there were."""
    return processes.sweep({folder.process_mark})
