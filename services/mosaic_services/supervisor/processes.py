"""Processes of attempts: is a run host alive, stop it, sweep what a dead one left, what do they use."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from mosaic_bus.messages import Usage
from mosaic_services import processes as shared
from mosaic_services.processes import MARK, is_alive
from mosaic_services.supervisor import run_host

if TYPE_CHECKING:
    from mosaic_services.supervisor.folder import AttemptFolder

__all__ = ["MARK", "UsageMeter", "is_alive", "open_end", "start_run_host", "stop_run_host", "sweep"]

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def mark_of(folder: AttemptFolder) -> str:
    """The value of `MARK` for one attempt: unique across homes."""
    return f"{folder.path}"


def start_run_host(folder: AttemptFolder, environ: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start the run host in a session of its own, and tell it the worker's environment; it outlives us."""
    with (folder.path / "host-errors.txt").open("ab") as errors:
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


def stop_run_host(host: dict[str, Any]) -> None:
    """SIGTERM the run host, which stops the worker."""
    if is_alive(host):
        with contextlib.suppress(ProcessLookupError):
            os.kill(host["pid"], signal.SIGTERM)


def sweep(folder: AttemptFolder) -> int:
    """Kill every process that carries the attempt's mark; return how many there were."""
    return shared.sweep({mark_of(folder)})


class UsageMeter:
    """CPU and memory of process trees, from one pass over all processes."""

    def __init__(self) -> None:
        self._cpu: dict[int, float] = {}
        self._measured_at = 0.0

    def measure(self, roots: dict[Any, int], now: float) -> dict[Any, Usage]:
        """Usage of everything below each root pid, since the last call."""
        if not roots:
            return {}
        parents: dict[int, list[int]] = {}
        used: dict[int, tuple[float, int]] = {}
        for pid in psutil.pids():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = Path(f"/proc/{pid}/stat").read_bytes().rsplit(b")", 1)[1].split()
                parents.setdefault(int(fields[1]), []).append(pid)
                used[pid] = (int(fields[11]) + int(fields[12])) / _TICKS, int(fields[21]) * _PAGE
        elapsed, self._measured_at = now - self._measured_at, now
        cpu_now: dict[int, float] = {}
        usages = {}
        for name, root in roots.items():
            queue, cpu, rss, count = list(parents.get(root, [])), 0.0, 0, 0
            while queue:
                pid = queue.pop()
                queue += parents.get(pid, [])
                cpu_now[pid], resident = used[pid]
                cpu += cpu_now[pid] - self._cpu.get(pid, cpu_now[pid])
                rss += resident
                count += 1
            percent = 100 * cpu / elapsed if elapsed > 0 else 0.0
            usages[name] = Usage(cpu_percent=round(percent, 1), rss_mb=round(rss / 2**20, 1), processes=count)
        self._cpu = cpu_now
        return usages
