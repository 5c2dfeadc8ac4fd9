"""What of a home's runs is alive, read from disk and from /proc: the truth when no service can be asked any more."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from mosaic_services import processes

if TYPE_CHECKING:
    from pathlib import Path

    from mosaic_services.home import StackHome

__all__ = ["Attempt", "alive", "kill", "strays", "terminate", "unended"]

_DEFAULT_GRACE_S = 30.0
# What the kernel does not let go of within a few seconds is reported, not waited for.
_ROUNDS = 15


@dataclass(frozen=True)
class Attempt:
    """One attempt that the supervisor is not done with."""

    run: str
    folder: Path

    @property
    def ended(self) -> bool:
        """Whether its run host has recorded that nothing of it is left."""
        return (self.folder / "exit.json").exists()

    @property
    def grace_s(self) -> float:
        """How long it may take to stop, once asked."""
        for name in ("attempt.json", "placed.json"):
            found = _read(self.folder / name)
            grace = found.get("grace_s", (found.get("spec") or {}).get("grace_s"))
            if isinstance(grace, int | float):
                return float(grace)
        return _DEFAULT_GRACE_S

    def run_host(self) -> int | None:
        """The pid of its run host, if that is alive."""
        host = _read(self.folder / "host.json")
        return int(host["pid"]) if processes.is_alive(host) else None


def _read(path: Path) -> dict[str, Any]:
    try:
        found = orjson.loads(path.read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return {}
    return found if isinstance(found, dict) else {}


def _noted(home: StackHome) -> list[Attempt]:
    notes = sorted(note for note in (home.path / "active").glob("*.*") if note.suffix[1:].isdecimal())
    return [Attempt(note.stem, home.runs / note.stem / note.suffix[1:]) for note in notes]


def unended(home: StackHome) -> list[Attempt]:
    """Attempts that have not ended, as far as the disk tells: preparing, running, stopping, or lost with their host."""
    return [each for each in _noted(home) if not each.ended]


def alive(home: StackHome) -> dict[str, int]:
    """The runs whose run host is alive, each with its pid."""
    noted = _noted(home)
    by_folder = processes.run_hosts({str(each.folder) for each in noted})
    found = {each.run: by_folder.get(str(each.folder)) or each.run_host() for each in noted}
    return {run: pid for run, pid in found.items() if pid is not None}


def strays(home: StackHome) -> set[int]:
    """Processes of attempts, run hosts aside, and of builds."""
    return processes.carriers(_marks(home))


def _marks(home: StackHome) -> set[str]:
    """What processes of this home carry; a build whose supervisor was killed is finished by nobody's order."""
    return {str(each.folder) for each in _noted(home)} | {processes.build_mark(home)}


def terminate(home: StackHome) -> int:
    """Ask every run host to stop its run; return how many there were."""
    found = alive(home)
    for each in _noted(home):
        if each.run in found:
            # So that whoever adopts it knows that it was stopped on purpose, as if a supervisor had done it.
            with contextlib.suppress(OSError), (each.folder / "stop.json").open("xb") as note:
                note.write(orjson.dumps({"reason": "mosaic up was stopped"}))
            _signal(found[each.run], signal.SIGTERM)
    return len(found)


def kill(home: StackHome) -> tuple[int, int]:
    """Kill every run host, whose worker dies with it, and all else that carries a mark; return how many of each."""
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
    # Nobody is left to remove what they had in shared memory.
    shutil.rmtree(home.frames, ignore_errors=True)
    return len(hosts), others


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
