"""Processes of runs that outlived their services, found on disk and in /proc without asking any service."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from typing import TYPE_CHECKING

from mosaic_services import processes
from mosaic_services.attempt_folder.folder import AttemptFolder

if TYPE_CHECKING:
    from mosaic_services.home import StackHome

__all__ = ["alive", "kill", "strays", "terminate", "unended"]

# Rounds of killing. A process that the kernel holds for longer is reported, not waited for.
_ROUNDS = 15


def unended(home: StackHome) -> list[AttemptFolder]:
    """Attempts without an exit record: preparing, running, stopping, or lost with their run host."""
    return [each for each in AttemptFolder.active(home) if not each.has_exit()]


def alive(home: StackHome) -> dict[str, int]:
    """Map runs whose run host is alive to its pid."""
    noted = AttemptFolder.active(home)
    by_folder = processes.run_hosts({str(each.path) for each in noted})
    found = {each.key.run: by_folder.get(str(each.path)) or _run_host(each) for each in noted}
    return {run: pid for run, pid in found.items() if pid is not None}


def _run_host(folder: AttemptFolder) -> int | None:
    try:
        host = folder.host()
    except OSError:
        return None
    return int(host["pid"]) if host is not None and processes.is_alive(host) else None


def strays(home: StackHome) -> set[int]:
    """Pids of processes of attempts (without run hosts) and of builds."""
    return processes.carriers(_marks(home))


def _marks(home: StackHome) -> set[str]:
    """Marks of all processes of this home, builds included: a build may outlive its supervisor."""
    return {each.process_mark for each in AttemptFolder.active(home)} | {processes.build_mark(home)}


def terminate(home: StackHome) -> int:
    """Ask every run host to stop its run; return their number."""
    found = alive(home)
    for each in AttemptFolder.active(home):
        if each.key.run in found:
            # A supervisor that adopts the attempt must know that it was stopped on purpose.
            with contextlib.suppress(OSError):
                each.ask_to_stop("mosaic up was stopped")
            _signal(found[each.key.run], signal.SIGTERM)
    return len(found)


def kill(home: StackHome) -> tuple[int, int]:
    """Kill all run hosts (their workers die with them) and marked processes; return the number of each."""
    hosts: set[int] = set()
    others = 0
    marks = _marks(home)
    for _ in range(_ROUNDS):
        found = set(alive(home).values())
        for pid in found:
            _signal(pid, signal.SIGKILL)
        hosts |= found
        swept = processes.sweep(marks, _ROUNDS)
        others += swept
        if not found and not swept:
            break
        time.sleep(0.01)
    # No process is left to remove its frames from shared memory.
    shutil.rmtree(home.frames, ignore_errors=True)
    return len(hosts), others


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
