"""Every error of the telemetry aggregator, and what errors of its store mean."""

from __future__ import annotations

import errno
import shutil
import sqlite3
from typing import TYPE_CHECKING

from mosaic_bus.errors import BusError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["StoreLayoutError", "TelemetryError", "explain", "is_of_the_store"]

_LITTLE_ROOM = 1024 * 1024
"""Free bytes below which an error of SQLite is taken for a full disk: the files beside the store need some too."""


class TelemetryError(BusError):
    """Base of all errors raised here."""


class StoreLayoutError(TelemetryError):
    """The store was written by another version."""

    def __init__(self, path: str, found: int, known: int) -> None:
        super().__init__(f"{path} has layout {found}, this version needs {known}: move it away or use another home")


def is_of_the_store(error: Exception) -> bool:
    """Whether an error is about the database file, and not about the data that was to be written into it."""
    of_data = (sqlite3.ProgrammingError, sqlite3.InterfaceError, sqlite3.DataError, sqlite3.IntegrityError)
    return isinstance(error, sqlite3.Error) and not isinstance(error, of_data)


def explain(error: Exception, path: Path) -> str:
    """Say why the store cannot be written, and what to do."""
    if _is_full(error, path):
        return f"disk full: cannot write {path}; free some space; nothing is lost while the journals are kept"
    return f"cannot write {path}: {error}"


def _is_full(error: Exception, path: Path) -> bool:
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL or getattr(error, "errno", None) == errno.ENOSPC:
        return True
    try:  # SQLite reports "disk I/O error" if there is no room for the files beside the store
        return shutil.disk_usage(path.parent).free < _LITTLE_ROOM
    except OSError:
        return False
