"""Where a shard is played: the machine, and the environment of the arena and of each policy, with their packages."""

import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import Distribution, PackageNotFoundError, version
from pathlib import Path
from typing import Any

import gymnasium

__all__ = ["environments", "machine", "versions"]

_OWN = ("numpy", "pettingzoo", "mpe2", "minigrid", "ale-py", "mujoco")
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def machine() -> dict[str, Any]:
    """Describe the machine that plays."""
    return {"processor": _processor(), "platform": platform.platform(), "cpus": os.cpu_count()}


def versions() -> dict[str, str]:
    """Return the versions of what the arena itself plays with."""
    found = {"python": platform.python_version(), "gymnasium": gymnasium.__version__}
    for package in _OWN:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def environments(uses: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Describe the environment of the arena, and those of the policies that may play, by worker and profile."""
    own = {"environment": Path(__file__).parents[1].name, "packages": Path(sys.prefix).name, "versions": versions()}
    return {"arena": own} | {
        f"{use['worker']}/{use['profile']}": _describe(
            Path(use["argv"][0]).parents[1], Path(str(use["environ"].get("PYTHONPATH", "")).split(os.pathsep)[0])
        )
        for use in uses
    }


def _describe(venv: Path, site: Path) -> dict[str, Any]:
    """Name the folders, which are hashes of code and lock, and the versions of what the worker asks for."""
    places = [str(place) for place in venv.glob("lib/python*/site-packages")]
    wanted = {"gymnasium"} | {name for own in Distribution.discover(path=[str(site)]) for name in _required(own)}
    found = {each.metadata["Name"]: each.version for name in wanted for each in _find(name, places)}
    return {"environment": site.name, "packages": venv.name, "versions": dict(sorted(found.items()))}


def _required(own: Distribution) -> Iterable[str]:
    return [found[0] for each in own.requires or () if "extra ==" not in each and (found := _NAME.match(each))]


def _find(name: str, places: list[str]) -> Iterable[Distribution]:
    return Distribution.discover(name=name, path=places)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    found = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return found or platform.processor()
