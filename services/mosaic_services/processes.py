"""Processes of a home, told from strangers: is the one a file names still alive, who carries a mark, end them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from mosaic_bus.logs import Logger
from mosaic_services.attempt_folder.layout import FAMILY, identity, is_alive

if TYPE_CHECKING:
    from collections.abc import Collection

    from mosaic_services.home import StackHome

__all__ = ["MARK", "build_mark", "carriers", "is_alive", "run_hosts", "sweep"]

_log = Logger()

# Stands in the environment of every process of an attempt or a build, so that orphans can be told from strangers.
MARK = "MOSAIC_ATTEMPT_MARK"
# A killed process is gone at once, unless the kernel holds it: then there is no point in waiting for ever.
_SWEEP_ROUNDS = 500
# Attempts whose `family.json` has been complained about.
_complained: set[str] = set()


def build_mark(home: StackHome) -> str:
    """The value of `MARK` for the environments that the supervisor of a home has built."""
    return str(home.path / "builds")


def sweep(marks: Collection[str], rounds: int = _SWEEP_ROUNDS) -> int:
    """Kill every process of the attempts with these marks (see `carriers`) and wait until they are gone.

    Returns how many there were.
    """
    killed: dict[int, dict[str, Any]] = {}
    for _ in range(rounds):
        found = carriers(marks)
        # One that dies shows no mark any more, but may take a while to be gone, on a busy machine.
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
    """Find every process that carries one of the marks, or that a run host noted.

    A mark is an attempt's folder. A process can clear its environment, or write over it (setproctitle does): that is
    why run hosts note their descendants in `family.json` every few seconds.
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
        # The worker's own files lie in the same folder. Who carries the mark is found all the same.
        if mark not in _complained:
            _complained.add(mark)
            _log.warning("family.json is not as a run host writes it", folder=mark, reason=repr(error))
        return []


def run_hosts(folders: Collection[str]) -> dict[str, int]:
    """Find the run hosts of attempts by their folders, also those that have not written `host.json` yet."""
    found = {}
    for pid in psutil.pids():
        with contextlib.suppress(OSError, ValueError, IndexError):
            # A run host that was forked from a template has more room for its command line than it uses.
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
