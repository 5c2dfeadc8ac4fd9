"""A small file system, for tests of a full disk."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def mounted(folder: Path, size: str) -> Iterator[Path]:
    """Mount a small file system; skip the test, with the reason, where mounting is not permitted."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"mounting a small tmpfs needs root: {done.stderr.strip()}")
    yield folder
    # Unmount lazily: services with open files there may outlive this fixture.
    subprocess.run(["umount", "--lazy", folder], check=True)
