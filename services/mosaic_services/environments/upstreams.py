"""Upstreams: a checkout of a library that the user brings along, remembered for each home and worker.

Which worker takes one, and what it looks like, its `profiles.toml` says: `upstream = "cleanrl/ppo.py"` names a file
that every such checkout has. The worker's processes find its path in `MOSAIC_UPSTREAM`.
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
    """The checkout that a worker of this home was given."""
    try:
        text = (home.path / "upstreams" / worker).read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return Path(text) if text else None


def remember_upstream(worker: str, home: StackHome, folder: Path | None) -> None:
    """Give a worker of this home a checkout, or take it back."""
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
    """Turn what the user gave into a folder: a path is taken as it is, a git URL is cloned into the home."""
    if not _URL.match(given):
        return Path(given).expanduser().absolute()
    place = home.path / "checkouts"
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{worker}-", dir=place) as scratch:
        clone = Path(scratch) / "clone"
        _git("clone", "--quiet", "--depth", "1", given, str(clone), url=given, worker=worker)
        commit = _git("-C", str(clone), "rev-parse", "--short=12", "HEAD", url=given, worker=worker)
        # A folder for each commit, so that a later clone does not change the code of a run that goes on.
        folder = place / f"{worker}-{commit}"
        if not folder.exists():
            clone.rename(folder)
    return folder


def _git(*words: str, url: str, worker: str) -> str:
    git = shutil.which("git")
    if git is None:
        raise UpstreamError(worker, f"cannot clone {url}: there is no git on the PATH; give the path of a folder")
    # Never a question: nobody may be there to answer.
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
    """The Python files of a checkout, less hidden folders and virtualenvs that somebody made in it."""
    found: list[Path] = []
    for place, folders, files in os.walk(folder):
        hidden = [name for name in folders if name.startswith(".") or name == "__pycache__"]
        folders[:] = [
            name for name in folders if name not in hidden and not (Path(place) / name / "pyvenv.cfg").exists()
        ]
        found += [Path(place) / name for name in files if name.endswith(".py")]
    return sorted(found)
