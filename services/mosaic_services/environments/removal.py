"""Removing environments: what a worker has on disk, all versions of it, and virtualenvs that nobody needs any more."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from mosaic_services.environments.environment import COMPLETE, cache_folder
from mosaic_services.environments.errors import InUseError, UnknownProfileError, UnknownWorkerError
from mosaic_services.environments.recipes import find_recipes, forget, registered
from mosaic_services.environments.upstreams import remember_upstream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mosaic_bus.home import Home

__all__ = ["Removed", "remove"]


@dataclass(frozen=True)
class Removed:
    """What was removed: environments by profile (all versions), folders, bytes; and whether a folder was forgotten."""

    profiles: list[str]
    folders: list[Path]
    freed: int
    forgotten: bool


def remove(worker: str, profile: str | None, home: Home) -> Removed:
    """Remove all versions of a worker's environment, or of all its profiles; without a profile, forget its folder, too.

    Virtualenvs may be shared: those that no environment needs any more go as well, whoever left them.
    """
    origins = _origins()
    mine = [
        name
        for name, origin in sorted(origins.items())
        if origin["worker"] == worker and profile in (None, origin["profile"])
    ]
    if not mine:
        _require_known(worker, profile, home)
    cache = cache_folder()
    sites = [cache / "sites" / name for name in mine]
    if users := _users_of(sites):
        raise InUseError(worker, users)
    needed = {origin["venv"] for name, origin in origins.items() if name not in mine}
    venvs = [path for path in sorted((cache / "envs").glob("*")) if path.is_dir() and path.name not in needed]
    folders = [*sites, *(path for path in venvs if not _users_of([path]))]
    freed = sum(_remove(folder) for folder in folders)
    forgotten = profile is None and worker in registered(home)
    if profile is None:
        forget(worker, home)
        remember_upstream(worker, home, None)
    return Removed(sorted({origins[name]["profile"] for name in mine}), folders, freed, forgotten)


def _require_known(worker: str, profile: str | None, home: Home) -> None:
    """Refuse a name that means nothing here."""
    profiles = {recipe.worker: recipe.profiles for recipe in find_recipes(home)}
    if worker not in profiles.keys() | registered(home):
        raise UnknownWorkerError(worker, profiles)
    if profile is not None and profile not in profiles.get(worker, {}):
        raise UnknownProfileError(worker, profile, profiles.get(worker, {}))


def _origins() -> dict[str, dict[str, Any]]:
    """Whose each environment is, and which virtualenv it stands on: noted before it is built."""
    found = {}
    for note in (cache_folder() / "sites").glob("*.json"):
        with note.open() as file:
            found[note.stem] = json.load(file)
    return found


def _users_of(folders: list[Path]) -> dict[int, str]:
    """The processes that run from one of some folders, with what they are: every worker names its folders somewhere."""
    wanted = [str(folder).encode() for folder in folders]
    found = {}
    for pid in psutil.pids():
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            everything = command + Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if pid != os.getpid() and any(each in everything for each in wanted):
            found[pid] = command.rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
    return found


def _remove(folder: Path) -> int:
    """Remove a folder and what was noted of it, unless it is being built; return how many bytes that gives."""
    with _not_being_built(folder):
        freed = _size(folder)
        # First, so that nobody takes what is left for whole if this is cut short.
        (folder / COMPLETE).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        folder.with_name(f"{folder.name}.json").unlink(missing_ok=True)
    return freed


@contextmanager
def _not_being_built(folder: Path) -> Iterator[None]:
    # The lock's file stays: whoever waits for it has it open already, and would hold another than the next.
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUseError(folder.name, {}) from None
        yield


def _size(folder: Path) -> int:
    total = 0
    for place, _, files in os.walk(folder):
        total += sum(os.lstat(f"{place}/{name}").st_blocks for name in files) * 512
    return total
