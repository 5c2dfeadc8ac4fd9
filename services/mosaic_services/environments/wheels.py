"""Builds wheels with the setuptools of our own environment, which is faster than pip: pip installs one first.

This works for pure-Python packages that need only setuptools to be built. pip builds all others, in isolation.
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import tomllib
from typing import TYPE_CHECKING

from packaging.requirements import InvalidRequirement, Requirement

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["build_wheel", "needs_only_setuptools"]

_BUILD = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"


def build_wheel(folder: Path, out: Path) -> Path | None:
    """Build the wheel of a package folder in a new folder below `out`; return None if pip has to build it."""
    if not needs_only_setuptools(folder):
        return None
    place = out / folder.parent.name
    place.mkdir(parents=True, exist_ok=True)
    # If this fails, pip fails too, and explains why.
    done = subprocess.run(
        [sys.executable, "-I", "-c", _BUILD, str(place)], cwd=folder, capture_output=True, check=False
    )
    built = list(place.glob("*-none-any.whl"))
    return built[0] if done.returncode == 0 and len(built) == 1 else None


def needs_only_setuptools(folder: Path) -> bool:
    """Whether a package declares that it needs only setuptools, in a version that we have."""
    try:
        system = tomllib.loads((folder / "pyproject.toml").read_text()).get("build-system", {})
        requirements = [Requirement(each) for each in system.get("requires", [])]
        if system.get("build-backend") != "setuptools.build_meta" or "backend-path" in system or not requirements:
            return False
        return all(
            each.name in ("setuptools", "wheel")
            and each.marker is None
            and each.specifier.contains(importlib.metadata.version(each.name), prereleases=True)
            for each in requirements
        )
    except (OSError, ValueError, InvalidRequirement, importlib.metadata.PackageNotFoundError):
        return False
