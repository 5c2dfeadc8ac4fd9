"""Removes environments: all sites of a worker, and the virtualenvs that no other site uses.

Only what the notes beside the sites name is removed. Notes are written before anything is built, and builders hold the
locks of what they build. So whoever holds all locks can trust the notes.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mosaic_services.environments.environment import COMPLETE, cache_folder, lock_of, note_of
from mosaic_services.environments.errors import InUseError, UnknownProfileError, UnknownWorkerError
from mosaic_services.environments.recipes import find_recipes, forget, registered
from mosaic_services.environments.upstreams import remember_upstream

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mosaic_services.home import StackHome

__all__ = ["Removed", "remove"]


@dataclass(frozen=True)
class Removed:
    """What was removed: profiles, folders and bytes; and whether the worker was unregistered."""

    profiles: list[str]
    folders: list[Path]
    freed: int
    forgotten: bool


@dataclass(frozen=True)
class _Note:
    """A site with its worker, its profile and its virtualenv."""

    site: Path
    worker: str
    profile: str
    venv: Path


def remove(worker: str, profile: str | None, home: StackHome) -> Removed:
    """Remove a worker's environments, or those of one profile; remove none if one is in use.

    Without a profile, also unregister the worker's folder.
    """
    with contextlib.ExitStack() as locks:
        concerned = [note for note in _notes() if note.worker == worker and profile in (None, note.profile)]
        for folder in {folder for note in concerned for folder in (note.site, note.venv)}:
            locks.enter_context(_lock(folder, worker))
        notes = _notes()  # Read again under the locks.
        mine = [note for note in notes if note in concerned]
        if not mine:
            _require_known(worker, profile, home)
        needed = {note.venv for note in notes if note not in mine}
        folders = [*(note.site for note in mine), *sorted({note.venv for note in mine} - needed)]
        if users := _users_of(folders):
            raise InUseError(worker, users)
        freed = sum(map(_delete, reversed(folders)))  # Virtualenvs first: notes let a removal be repeated.
    forgotten = profile is None and worker in registered(home)
    if forgotten:
        forget(worker, home)
        remember_upstream(worker, home, None)
    return Removed(sorted({note.profile for note in mine}), folders, freed, forgotten)


def _require_known(worker: str, profile: str | None, home: StackHome) -> None:
    """Refuse an unknown worker or profile."""
    profiles = {recipe.worker: recipe.profiles for recipe in find_recipes(home)}
    if worker not in profiles.keys() | registered(home):
        raise UnknownWorkerError(worker, profiles)
    if profile is not None and profile not in profiles.get(worker, {}):
        raise UnknownProfileError(worker, profile, profiles.get(worker, {}))


def _notes() -> list[_Note]:
    cache = cache_folder()
    found = []
    for path in sorted((cache / "sites").glob("*.json")):
        # Skip notes that are gone or cannot be read.
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            note = json.loads(path.read_text())
            venv = cache / "envs" / Path(note["venv"]).name
            found.append(_Note(path.with_suffix(""), note["worker"], note["profile"], venv))
    return found


@contextlib.contextmanager
def _lock(folder: Path, worker: str) -> Iterator[None]:
    """Lock a folder against builders; refuse if it is being built."""
    # The lock file is not removed: a waiting process has it open, and a new file would be another lock.
    with lock_of(folder).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUseError(worker) from None
        yield


def _users_of(folders: list[Path]) -> set[int]:
    """Return the processes that have one of the folders in their command line or environment."""
    wanted = {os.fsencode(path) for folder in folders for path in (folder, folder.resolve())}
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            with contextlib.suppress(OSError):
                said = (process / name).read_bytes()
                if any(path in said for path in wanted):
                    found.add(int(process.name))
    return found - {os.getpid()}


def _delete(folder: Path) -> int:
    """Delete a folder and then its note; return the bytes freed."""
    freed = 0
    for place, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(FileNotFoundError):
                freed += os.lstat(f"{place}/{name}").st_blocks * 512
    if folder.exists():
        # First, so that a folder that is only partly deleted does not count as complete.
        (folder / COMPLETE).unlink(missing_ok=True)
        shutil.rmtree(folder)
    note_of(folder).unlink(missing_ok=True)  # A virtualenv has none.
    return freed
