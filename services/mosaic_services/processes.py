"""Finds and kills the processes of a home: by the mark in their environment, or by the files of run hosts."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from mosaic_bus.logs import FirstTime, Logger
from mosaic_services.attempt_folder.layout import FAMILY
from mosaic_services.attempt_folder.proc import identity, is_alive

if TYPE_CHECKING:
    from collections.abc import Collection

    from mosaic_services.home import StackHome

__all__ = ["MARK", "build_mark", "carriers", "is_alive", "run_hosts", "sweep"]

_log = Logger()

# Environment variable of every process of an attempt or a build. It identifies orphans.
MARK = "MOSAIC_ATTEMPT_MARK"
# Upper limit for waiting until killed processes are gone: the kernel may hold one indefinitely.
_SWEEP_ROUNDS = 500
# Of attempts whose `family.json` is unreadable.
_first_time = FirstTime()


def build_mark(home: StackHome) -> str:
    """The value of `MARK` for builds that the supervisor of a home started."""
    return str(home.path / "builds")


def sweep(marks: Collection[str], rounds: int = _SWEEP_ROUNDS) -> int:
    """Kill every process with one of these marks (see `carriers`), wait until they are gone, and count them."""
    killed: dict[int, dict[str, Any]] = {}
    for _ in range(rounds):
        found = carriers(marks)
        # A dying process shows no mark, but may take a while to disappear on a busy machine.
        dying = any(map(is_alive, killed.values()))
        if not found and not dying:
            break
        for pid in found:
            with contextlib.suppress(OSError, ValueError, IndexError):
                killed[pid] = identity(pid)
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return len(killed)


def carriers(marks: Collection[str]) -> set[int]:
    """Find every process that carries one of the marks, or that a run host listed in `family.json`.

    A mark is an attempt's folder. A process can clear or overwrite its environment (setproctitle does), so run hosts
    also list their descendants every few seconds.
    """
    if not marks:
        return set()
    wanted = {f"{MARK}={mark}".encode() for mark in marks}
    found = {pid for pid in psutil.pids() if pid != os.getpid() and _carries(pid, wanted)}
    return found | {member["pid"] for mark in marks for member in _family(mark) if is_alive(member)}


def _family(mark: str) -> list[dict[str, Any]]:
    try:
        found = json.loads((Path(mark) / FAMILY).read_bytes())["processes"]
        return [member for member in found if type(member["pid"]) is int]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        # The worker may have written it: its own files are in the same folder. Marks still work.
        if _first_time(mark):
            _log.warning("family.json is not as a run host writes it", folder=mark, reason=repr(error))
        return []


def run_hosts(folders: Collection[str]) -> dict[str, int]:
    """Map folders of attempts to the pids of their run hosts, including those without a `host.json` yet."""
    found = {}
    for pid in psutil.pids():
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The command line of a run host that was forked from a template is padded with NULs.
            words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode(errors="surrogateescape").split("\0")
            named = len(words) > 1 and words[-1] in folders and words[-2].endswith("run_host.py")
            if named and is_alive(identity(pid)):
                found[words[-1]] = pid
    return found


def _carries(pid: int, wanted: set[bytes]) -> bool:
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return not wanted.isdisjoint(environ) and is_alive(identity(pid))
    except (OSError, ValueError, IndexError):
        return False
