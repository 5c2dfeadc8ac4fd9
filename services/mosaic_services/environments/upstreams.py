"""Upstreams: checkouts of libraries that the user gives to workers, remembered per home and worker.

A worker that accepts one names a file of it in `profiles.toml`: `upstream = "cleanrl/ppo.py"`. The worker's processes
get the path in `MOSAIC_UPSTREAM`.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from mosaic_services.environments.errors import UpstreamError

if TYPE_CHECKING:
    from mosaic_services.home import StackHome

__all__ = ["VARIABLE", "check_upstream", "fetch_upstream", "known_upstream", "python_files", "remember_upstream"]

VARIABLE = "MOSAIC_UPSTREAM"
_URL = re.compile(r"[a-z+]+://|[\w.-]+@[\w.-]+:")
_CLONE_S = 600.0


def known_upstream(worker: str, home: StackHome) -> Path | None:
    """Return the checkout that a worker of this home was given."""
    try:
        text = (home.path / "upstreams" / worker).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return Path(text) if text else None


def remember_upstream(worker: str, home: StackHome, folder: Path | None) -> None:
    """Remember the checkout of a worker of this home, or forget it."""
    note = home.path / "upstreams" / worker
    if folder is None:
        note.unlink(missing_ok=True)
        return
    note.parent.mkdir(parents=True, exist_ok=True)
    scratch = home.path / f"upstreams.{worker}.new"
    scratch.write_text(str(folder))
    scratch.replace(note)


def check_upstream(worker: str, folder: Path, marker: str) -> None:
    """Refuse a folder that is not a checkout of the worker's library."""
    if not folder.is_dir():
        raise UpstreamError(worker, f"{folder} is not a folder")
    if not (folder / marker).is_file():
        raise UpstreamError(worker, f"{folder} has no {marker}")


def fetch_upstream(given: str, worker: str, home: StackHome) -> Path:
    """Return the folder of a checkout: a path as it is, or a clone of a git URL in the home."""
    if not _URL.match(given):
        return Path(given).expanduser().absolute()
    place = home.path / "checkouts"
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{worker}-", dir=place) as scratch:
        clone = Path(scratch) / "clone"
        _git("clone", "--quiet", "--depth", "1", given, str(clone), url=given, worker=worker)
        commit = _git("-C", str(clone), "rev-parse", "--short=12", "HEAD", url=given, worker=worker)
        # One folder per commit, so that a later clone does not change the code of a running run.
        folder = place / f"{worker}-{commit}"
        if not folder.exists():
            clone.rename(folder)
    return folder


def _git(*words: str, url: str, worker: str) -> str:
    git = shutil.which("git")
    if git is None:
        raise UpstreamError(worker, f"cannot clone {url}: there is no git on the PATH; give the path of a folder")
    # Never prompt.
    environ = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_SSH_COMMAND": "ssh -oBatchMode=yes"}
    try:
        done = subprocess.run(
            [git, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            env=environ,
            timeout=_CLONE_S,
        )
    except subprocess.TimeoutExpired:
        raise UpstreamError(worker, f"cannot clone {url}: git took more than {_CLONE_S:.0f} s") from None
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["git said nothing"])[-1]
        raise UpstreamError(worker, f"cannot clone {url}: {said}; give the path of a folder if there is no network")
    return done.stdout.strip()


def python_files(folder: Path) -> list[Path]:
    """Return the Python files of a checkout, without hidden folders and virtualenvs."""
    found: list[Path] = []
    for place, folders, files in os.walk(folder):
        hidden = [name for name in folders if name.startswith(".") or name == "__pycache__"]
        folders[:] = [
            name for name in folders if name not in hidden and not (Path(place) / name / "pyvenv.cfg").exists()
        ]
        found += [Path(place) / name for name in files if name.endswith(".py")]
    return sorted(found)
