"""CPU and memory that attempts use."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import psutil

from mosaic_bus.messages import Usage
from mosaic_services.attempt_folder.proc import process_stat

__all__ = ["UsageMeter"]

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class UsageMeter:
    """Measures CPU and memory of process trees in one pass over all processes."""

    def __init__(self) -> None:
        self._cpu: dict[int, float] = {}
        self._measured_at = 0.0

    def measure(self, roots: dict[Any, int], now: float) -> dict[Any, Usage]:
        """Return the usage of all descendants of each root pid; CPU since the last call."""
        if not roots:
            return {}
        parents: dict[int, list[int]] = {}
        used: dict[int, tuple[float, int]] = {}
        for pid in psutil.pids():
            with contextlib.suppress(OSError, ValueError, IndexError):
                fields = process_stat(pid)
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
