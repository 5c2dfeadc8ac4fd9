"""Building a wheel quickly: with the setuptools of our own environment, where pip would first install one.

That is what makes a change of worker code cost seconds. It serves pure-Python packages that are built by setuptools
and need nothing else to be built; whatever else there is, pip builds in isolation, as it always does.
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
    """Build the wheel of a package folder into a folder of its own below `out`; None if that is a matter for pip."""
    if not needs_only_setuptools(folder):
        return None
    place = out / folder.parent.name
    place.mkdir(parents=True, exist_ok=True)
    # What goes wrong here goes wrong in pip's own way of building, too, and there it is explained.
    done = subprocess.run(
        [sys.executable, "-I", "-c", _BUILD, str(place)], cwd=folder, capture_output=True, check=False
    )
    built = list(place.glob("*-none-any.whl"))
    return built[0] if done.returncode == 0 and len(built) == 1 else None


def needs_only_setuptools(folder: Path) -> bool:
    """Whether a package says that it is built by setuptools, in a version that we have."""
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
