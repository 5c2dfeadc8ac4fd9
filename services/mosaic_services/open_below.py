"""Opens files below a folder without following any link, so that a name from outside cannot lead elsewhere."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["open_below", "parts_of"]


def parts_of(path: str) -> list[str]:
    """Split a relative path; ValueError if it could lead out of its folder."""
    parts = path.split("/")
    if any(part in {"", ".", ".."} or "\0" in part for part in parts):
        raise ValueError(f"{path!r} is not a path below a folder")
    return parts


@contextlib.contextmanager
def open_below(folder: Path, parts: list[str]) -> Iterator[int]:
    """Open a file part by part, so that no link can lead elsewhere, even one that is made meanwhile."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            inside = os.open(part, flags | os.O_DIRECTORY, dir_fd=file)
            os.close(file)
            file = inside
        inside = os.open(parts[-1], flags, dir_fd=file)
        os.close(file)
        file = inside
        yield file
    finally:
        os.close(file)
