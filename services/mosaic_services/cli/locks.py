"""Who works in a home: reads the lock files that services hold for as long as they live."""

from __future__ import annotations

import fcntl
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from mosaic_bus import Home

__all__ = ["holder", "holders"]


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


def holders(home: Home) -> dict[str, int]:
    """Return what runs in a home: the name of each lock that is held, and the pid."""
    found = {path.stem: holder(path) for path in sorted(home.path.glob("*.lock"))}
    return {name: pid for name, pid in found.items() if pid is not None}
