"""An environment on disk: a virtualenv of locked packages, and a site folder with the kit and the worker.

Both are named by the hash of their content and never change once complete. So a rebuild does not disturb running runs,
two checkouts do not conflict, and a change of worker code needs a new site folder, which takes seconds, and not a new
virtualenv.
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
# Folders beside the package that are not installed. Inside the package, folders of these names are.
_NOT_INSTALLED = {"tests", "locks", "build", "dist"}
_OWN_MODULES = "MOSAIC_PYTHONPATH"
_OURS = ("PYTHON", "MOSAIC_", "VIRTUAL_ENV", "PIP_TARGET")


def cache_folder() -> Path:
    """Return the folder of all environments: `$MOSAIC_CACHE` or `~/.cache/mosaic`."""
    chosen = os.environ.get("MOSAIC_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    return Path(chosen) if chosen else base / "mosaic"


def lock_of(folder: Path) -> Path:
    """Return the lock file beside a virtualenv or a site, for builders and removers."""
    return folder.with_name(f"{folder.name}.lock")


def note_of(site: Path) -> Path:
    """Return the file beside a site that names its worker, its profile and its virtualenv."""
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
        """The worker's description of itself; None until it is installed."""
        try:
            found: dict[str, Any] = json.loads((self.site / COMPLETE).read_text())
        except FileNotFoundError:
            return None
        return found

    @property
    def warm(self) -> tuple[str, ...] | None:
        """The modules that a template imports; None if the profile has no template."""
        return self.recipe.profiles[self.profile].warm

    @property
    def upstream(self) -> Path | None:
        """The checkout that the worker was given; None if there is none or this profile takes none."""
        return None if self.recipe.profiles[self.profile].upstream is None else self.recipe.upstream

    def command(self, *arguments: str) -> list[str]:
        """Return the command line of the worker."""
        return [str(self.python), "-m", f"{self.recipe.package}.cli", *arguments]

    def environ(self, threads: int = 1, pythonpath: Iterable[str] = ()) -> dict[str, str]:
        """Return the variables of the worker: those of this process without the ones for its own Python."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(_OURS)}
        return {**kept, **self.variables(threads, pythonpath)}

    def variables(self, threads: int = 1, pythonpath: Iterable[str] = ()) -> dict[str, str]:
        """Return the variables that this environment sets.

        `threads` bounds the threads of numerical libraries, unless the user or the profile sets OMP_NUM_THREADS. By
        default they use one thread per core, and several runs slow each other down.
        """
        # Modules of the user come after the worker's, so that they cannot shadow them.
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
    """Return an environment of this machine, built or not."""
    wanted = recipe.profile(profile)
    base_python, version = find_python(wanted.python)
    constraints = [] if wanted.build_constraints is None else [wanted.build_constraints.read_bytes()]
    packages = _digest(wanted.lock.read_bytes(), version.encode(), platform.machine().encode(), *constraints)
    parts = [part for folder in (KIT_FOLDER, recipe.folder) for part in _parts(folder, source_files(folder))]
    if wanted.upstream is not None and recipe.upstream is not None:
        upstreams.check_upstream(recipe.worker, recipe.upstream, wanted.upstream)
        # The worker's description depends on the checkout.
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
    """Return the files of a package folder that determine what is installed."""
    found: list[str] = []
    for place, folders, files in os.walk(folder):  # Called every few seconds, and pathlib is slow.
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
    """Return the hash of a file, cached until size or time of change differ."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _digest(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()[:16]


def find_python(wanted: str) -> tuple[Path, str]:
    """Find an interpreter in a version range: first our own, then `python3.N` on the PATH."""
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
    """Return the version of an interpreter; empty if it does not run or cannot make virtualenvs."""
    ask = "import platform, venv; print(platform.python_version())"
    probe = subprocess.run([python, "-I", "-c", ask], capture_output=True, text=True, check=False)
    return probe.stdout.strip() if probe.returncode == 0 else ""
