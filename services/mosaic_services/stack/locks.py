"""Who works in a home: reads the lock files that services hold for as long as they live."""

from __future__ import annotations

import fcntl
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from mosaic_services.home import StackHome

__all__ = ["holder", "holders", "wait_until_free"]

# Seldom: whoever looks holds the lock for an instant, and a service that wants it must then ask twice.
_LOOK_S = 0.1


def holder(path: Path) -> int | None:
    """Return the pid of the process that holds a lock file, None if nobody does (a dead process holds nothing)."""
    try:
        with path.open("r") as file:
            pid = file.read().strip()
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(pid) if pid.isdigit() else None
    except FileNotFoundError:
        return None
    return None


def holders(home: StackHome) -> dict[str, int]:
    """Return what runs in a home: the name of each lock that is held, and the pid."""
    found = {path.stem: holder(path) for path in sorted(home.path.glob("*.lock"))}
    return {name: pid for name, pid in found.items() if pid is not None}


def wait_until_free(home: StackHome, seconds: float) -> dict[str, int]:
    """Wait until no service works in a home, `up` aside; return those that still do."""
    deadline = time.monotonic() + seconds
    while (left := {name: pid for name, pid in holders(home).items() if name != "up"}) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    return left
