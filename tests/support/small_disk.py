"""A file system with little room, for tests of a full disk."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def mounted(folder: Path, size: str) -> Iterator[Path]:
    """Mount a small file system; skip, saying why, where that is not permitted."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"mounting a small tmpfs needs root: {done.stderr.strip()}")
    yield folder
    # Lazily: services that have files there may end only after the test's own fixtures.
    subprocess.run(["umount", "--lazy", folder], check=True)
