"""Which processes use a home, according to the lock files that services hold while they run."""

from __future__ import annotations

import fcntl
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from mosaic_services.home import StackHome

__all__ = ["holder", "holders", "wait_until_free"]

# Interval of checks. Each check holds the lock briefly, which makes a starting service try again.
_LOOK_S = 0.1


def holder(path: Path) -> int | None:
    """Return the pid of the process that holds a lock file, or None."""
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
    """Map each lock that is held in a home to the pid of its holder."""
    found = {path.stem: holder(path) for path in sorted(home.path.glob("*.lock"))}
    return {name: pid for name, pid in found.items() if pid is not None}


def wait_until_free(home: StackHome, seconds: float) -> dict[str, int]:
    """Wait until no service runs in a home, `up` aside; return those that still do."""
    deadline = time.monotonic() + seconds
    while (left := {name: pid for name, pid in holders(home).items() if name != "up"}) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
    return left
