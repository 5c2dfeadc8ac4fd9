"""Run hosts as processes: starting one, hearing of its end, stopping it, sweeping up what a dead one left."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from mosaic_services import processes
from mosaic_services.attempt_folder.layout import HOST_ERRORS
from mosaic_services.attempt_folder.proc import is_alive
from mosaic_services.supervisor import run_host

if TYPE_CHECKING:
    from mosaic_services.attempt_folder import AttemptFolder

__all__ = ["open_end", "start", "stop", "sweep"]


def start(folder: AttemptFolder, environ: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start the run host in a session of its own, and tell it the worker's environment; it outlives us."""
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
    """A descriptor that becomes readable when a run host ends; None if it has, or the system has no such thing."""
    try:
        end = os.pidfd_open(host["pid"])
    except (AttributeError, OSError):
        return None
    if is_alive(host):  # Asked after it was opened: from then on the pid can be nobody else's.
        return end
    os.close(end)
    return None


def stop(host: dict[str, Any]) -> None:
    """SIGTERM the run host, which stops the worker."""
    if is_alive(host):
        with contextlib.suppress(ProcessLookupError):
            os.kill(host["pid"], signal.SIGTERM)


def sweep(folder: AttemptFolder) -> int:
    """Kill every process that carries the attempt's mark; return how many there were."""
    return processes.sweep({folder.process_mark})
