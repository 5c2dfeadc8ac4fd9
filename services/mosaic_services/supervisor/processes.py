"""Processes of attempts: is a run host alive, stop it, sweep what a dead one left, what do they use."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from mosaic_bus.messages import Usage
from mosaic_services.supervisor import run_host

if TYPE_CHECKING:
    from mosaic_services.supervisor.folder import AttemptFolder

__all__ = ["MARK", "UsageMeter", "is_alive", "open_end", "start_run_host", "stop_run_host", "sweep"]

# Stands in the environment of every process of an attempt, so that orphans can be told from strangers.
MARK = "MOSAIC_ATTEMPT_MARK"
# A killed process is gone at once, unless the kernel holds it: then there is no point in waiting for ever.
_SWEEP_ROUNDS = 500
_DEAD = (b"Z", b"X")
_BOOT = run_host.boot()
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


def mark_of(folder: AttemptFolder) -> str:
    """The value of `MARK` for one attempt: unique across homes."""
    return f"{folder.path}"


def start_run_host(folder: AttemptFolder) -> subprocess.Popen[bytes]:
    """Start the run host in a session of its own; it outlives us."""
    with (folder.path / "host-errors.txt").open("ab") as errors:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", run_host.__file__, str(folder.path)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
            env={},
        )


def is_alive(host: dict[str, Any]) -> bool:
    """Whether the process that wrote `host.json` still runs (and is not another one with the same pid)."""
    try:
        state, start_time = _state_and_start(host["pid"])
    except (OSError, ValueError, IndexError):
        return False
    return start_time == host["start_time"] and state not in _DEAD and host.get("boot", _BOOT) == _BOOT


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


def _state_and_start(pid: int) -> tuple[bytes, int]:
    fields = Path(f"/proc/{pid}/stat").read_bytes().rsplit(b")", 1)[1].split()
    return fields[0], int(fields[19])


def stop_run_host(host: dict[str, Any]) -> None:
    """SIGTERM the run host, which stops the worker."""
    if is_alive(host):
        with contextlib.suppress(ProcessLookupError):
            os.kill(host["pid"], signal.SIGTERM)


def sweep(folder: AttemptFolder) -> int:
    """Kill every process that carries the attempt's mark; return how many there were."""
    wanted = f"{MARK}={mark_of(folder)}".encode()
    killed: set[int] = set()
    for _ in range(_SWEEP_ROUNDS):
        found = {pid for pid in psutil.pids() if pid != os.getpid() and _carries(pid, wanted)}
        if not found:
            break
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed |= found
        time.sleep(0.01)
    return len(killed)


def _carries(pid: int, wanted: bytes) -> bool:
    try:
        return (
            wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") and _state_and_start(pid)[0] not in _DEAD
        )
    except (OSError, ValueError, IndexError):
        return False


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
