"""An environment on disk: a virtualenv of locked packages, and a small folder with the kit and the worker on top.

Both are named by the hash of what is in them and never change once complete, so a run that has started is not
disturbed by a rebuild, two checkouts do not get in each other's way, and a change of worker code costs seconds,
not a new virtualenv.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from packaging.specifiers import SpecifierSet

from mosaic_services.environments import upstreams
from mosaic_services.environments.errors import BuildError
from mosaic_services.environments.recipes import KIT_FOLDER, Recipe

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Environment", "cache_folder", "find_python", "lock_of", "note_of", "source_files", "status"]

COMPLETE = "complete.json"
# Folders beside the package; inside it, these names mean nothing special.
_NOT_INSTALLED = {"tests", "locks", "build", "dist"}
_OWN_MODULES = "MOSAIC_PYTHONPATH"
_OURS = ("PYTHON", "MOSAIC_", "VIRTUAL_ENV", "PIP_TARGET")


def cache_folder() -> Path:
    """Where environments are kept, outside any checkout: `$MOSAIC_CACHE` or `~/.cache/mosaic`."""
    chosen = os.environ.get("MOSAIC_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    return Path(chosen) if chosen else base / "mosaic"


def lock_of(folder: Path) -> Path:
    """The file beside a virtualenv or a site that whoever builds or removes it has locked."""
    return folder.with_name(f"{folder.name}.lock")


def note_of(site: Path) -> Path:
    """The file beside a site that says whose it is and on which virtualenv it stands."""
    return site.with_name(f"{site.name}.json")


@dataclass(frozen=True)
class Environment:
    """One profile of one worker, built or not."""

    recipe: Recipe
    profile: str
    base_python: Path
    venv: Path
    site: Path

    @property
    def status(self) -> Literal["available", "installed"]:
        """Whether it is built."""
        return "installed" if self.has_packages and (self.site / COMPLETE).is_file() else "available"

    @property
    def has_packages(self) -> bool:
        """Whether the virtualenv of locked packages, the slow part, is built."""
        return (self.venv / COMPLETE).is_file()

    @property
    def python(self) -> Path:
        """The interpreter of the virtualenv."""
        return self.venv / "bin" / "python"

    @property
    def fingerprint(self) -> str:
        """Changes whenever packages or worker code change."""
        return self.site.name

    @property
    def description(self) -> dict[str, Any] | None:
        """What the worker says of itself; None until it is installed."""
        try:
            found: dict[str, Any] = json.loads((self.site / COMPLETE).read_text())
        except FileNotFoundError:
            return None
        return found

    @property
    def warm(self) -> tuple[str, ...] | None:
        """The modules that a template of it imports; None if there is to be no template."""
        return self.recipe.profiles[self.profile].warm

    @property
    def upstream(self) -> Path | None:
        """The checkout that its processes get; None if there is none, or this profile takes none."""
        return None if self.recipe.profiles[self.profile].upstream is None else self.recipe.upstream

    def command(self, *arguments: str) -> list[str]:
        """The command line of the worker."""
        return [str(self.python), "-m", f"{self.recipe.package}.cli", *arguments]

    def environ(self, threads: int = 1, pythonpath: Iterable[str] = ()) -> dict[str, str]:
        """The environment variables of the worker: ours, less what belongs to the service's own Python."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(_OURS)}
        return {**kept, **self.variables(threads, pythonpath)}

    def variables(self, threads: int = 1, pythonpath: Iterable[str] = ()) -> dict[str, str]:
        """The variables that make a process one of this environment.

        Libraries compute with so many threads, unless the user or the profile says otherwise. By themselves they take
        one for every core of the machine: threads of several runs that wait for each other then use up all of it.
        """
        # Modules of the user's own, such as environments: behind the worker's, which they cannot shadow.
        folders = [str(self.site), *pythonpath, os.environ.get(_OWN_MODULES)]
        own = {
            "PATH": f"{self.venv / 'bin'}:{os.environ.get('PATH', os.defpath)}",
            "PYTHONPATH": os.pathsep.join(filter(None, folders)),
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(threads),
        }
        if self.upstream is not None:
            own[upstreams.VARIABLE] = str(self.upstream)
        return {**own, **self.recipe.profiles[self.profile].env}


def status(recipe: Recipe, profile: str) -> Environment:
    """Say where an environment is, or would be, on this machine."""
    wanted = recipe.profile(profile)
    base_python, version = find_python(wanted.python)
    constraints = [] if wanted.build_constraints is None else [wanted.build_constraints.read_bytes()]
    packages = _digest(wanted.lock.read_bytes(), version.encode(), platform.machine().encode(), *constraints)
    parts = [part for folder in (KIT_FOLDER, recipe.folder) for part in _parts(folder, source_files(folder))]
    if wanted.upstream is not None and recipe.upstream is not None:
        upstreams.check_upstream(recipe.worker, recipe.upstream, wanted.upstream)
        # What the worker says of itself comes from there, too.
        parts += [os.fsencode(recipe.upstream), *_parts(recipe.upstream, upstreams.python_files(recipe.upstream))]
    code = _digest(packages.encode(), *parts)
    return Environment(
        recipe=recipe,
        profile=profile,
        base_python=base_python,
        venv=cache_folder() / "envs" / packages,
        site=cache_folder() / "sites" / f"{recipe.worker}-{profile}-{code}",
    )


def source_files(folder: Path) -> list[Path]:
    """The files of a package folder that end up in an installation, or say how to make it."""
    found: list[str] = []
    for place, folders, files in os.walk(folder):  # a supervisor looks every few seconds, and pathlib is slow
        skipped = _NOT_INSTALLED if place == str(folder) else ()
        folders[:] = [name for name in folders if not _is_hidden(name) and name not in skipped]
        found += [f"{place}/{name}" for name in files if not _is_hidden(name) and name not in skipped]
    return sorted(path for path in map(Path, found) if path.is_file())


def _is_hidden(name: str) -> bool:
    return name == "__pycache__" or name.startswith(".") or name.endswith(".egg-info")


def _parts(folder: Path, files: list[Path]) -> list[bytes]:
    parts = []
    for path in files:
        found = path.stat()
        parts += [os.fsencode(path.relative_to(folder)), _file_digest(path, found.st_size, found.st_mtime_ns)]
    return parts


@functools.lru_cache(maxsize=10_000)
def _file_digest(path: Path, size: int, changed_at: int) -> bytes:  # noqa: ARG001 - a changed file is read again
    """The hash of a file; asked for every few seconds, read only when it has changed."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()[:16]


def find_python(wanted: str) -> tuple[Path, str]:
    """Find an interpreter that satisfies a version range: our own first, then `python3.N` on the path."""
    specifier = SpecifierSet(wanted)
    ours = getattr(sys, "_base_executable", None) or sys.executable
    candidates = [ours, *(shutil.which(f"python3.{minor}") for minor in range(20, 8, -1))]
    for candidate in filter(None, candidates):
        version = _version_of(candidate, Path(candidate).stat().st_mtime_ns)
        if version and specifier.contains(version, prereleases=True):
            return Path(candidate), version
    raise BuildError("finding a Python", [f"no Python {wanted} with the venv module is on the PATH"])


@functools.cache
def _version_of(python: str, changed_at: int) -> str:  # noqa: ARG001 - a changed file is asked again
    """The version of an interpreter that can make virtualenvs; empty if it cannot, or does not run at all."""
    ask = "import platform, venv; print(platform.python_version())"
    probe = subprocess.run([python, "-I", "-c", ask], capture_output=True, text=True, check=False)
    return probe.stdout.strip() if probe.returncode == 0 else ""
