"""Removing environments: all versions that a worker has on disk, and the virtualenvs that only these stood on.

What may be removed is what notes beside the sites name, and nothing else. A note is written before anything is built,
and builders hold the locks of what they build; so with the locks of all that is to go, what the notes say holds.
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
    """What was removed: profiles (all versions of them), folders, bytes; and whether the worker is forgotten."""

    profiles: list[str]
    folders: list[Path]
    freed: int
    forgotten: bool


@dataclass(frozen=True)
class _Note:
    """Whose a site is, and the virtualenv that it stands on."""

    site: Path
    worker: str
    profile: str
    venv: Path


def remove(worker: str, profile: str | None, home: StackHome) -> Removed:
    """Remove a worker's environments, or those of one profile, or none if one is in use.

    Without a profile, a folder that was made known to the home is forgotten, too.
    """
    with contextlib.ExitStack() as locks:
        concerned = [note for note in _notes() if note.worker == worker and profile in (None, note.profile)]
        for folder in {folder for note in concerned for folder in (note.site, note.venv)}:
            locks.enter_context(_lock(folder, worker))
        notes = _notes()  # Again: now nobody else can take what is to go.
        mine = [note for note in notes if note in concerned]
        if not mine:
            _require_known(worker, profile, home)
        needed = {note.venv for note in notes if note not in mine}
        folders = [*(note.site for note in mine), *sorted({note.venv for note in mine} - needed)]
        if users := _users_of(folders):
            raise InUseError(worker, users)
        freed = sum(map(_delete, reversed(folders)))  # what notes name before the notes: it can be asked for again
    forgotten = profile is None and worker in registered(home)
    if forgotten:
        forget(worker, home)
        remember_upstream(worker, home, None)
    return Removed(sorted({note.profile for note in mine}), folders, freed, forgotten)


def _require_known(worker: str, profile: str | None, home: StackHome) -> None:
    """Refuse a name that means nothing here."""
    profiles = {recipe.worker: recipe.profiles for recipe in find_recipes(home)}
    if worker not in profiles.keys() | registered(home):
        raise UnknownWorkerError(worker, profiles)
    if profile is not None and profile not in profiles.get(worker, {}):
        raise UnknownProfileError(worker, profile, profiles.get(worker, {}))


def _notes() -> list[_Note]:
    cache = cache_folder()
    found = []
    for path in sorted((cache / "sites").glob("*.json")):
        # One that is gone again, or cannot be read, names nothing that could be removed.
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            note = json.loads(path.read_text())
            venv = cache / "envs" / Path(note["venv"]).name
            found.append(_Note(path.with_suffix(""), note["worker"], note["profile"], venv))
    return found


@contextlib.contextmanager
def _lock(folder: Path, worker: str) -> Iterator[None]:
    """Keep builders away from a folder; refuse if one is at it."""
    # The lock's file stays: whoever waits for it has it open already, and would hold another than the next.
    with lock_of(folder).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InUseError(worker) from None
        yield


def _users_of(folders: list[Path]) -> set[int]:
    """The processes that run from one of some folders: every worker has them in its command line or environment."""
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
    """Delete a folder, and last what was noted of it; return how many bytes that gives."""
    freed = 0
    for place, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(FileNotFoundError):
                freed += os.lstat(f"{place}/{name}").st_blocks * 512
    if folder.exists():
        # First, so that nobody takes what is left for whole if this is cut short.
        (folder / COMPLETE).unlink(missing_ok=True)
        shutil.rmtree(folder)
    note_of(folder).unlink(missing_ok=True)  # of a site; a virtualenv has none
    return freed
