"""Builds an environment: a virtualenv from a lock, then the kit and the worker on top."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections import deque
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mosaic_services.environments.environment import COMPLETE, Environment, lock_of, note_of, source_files, status
from mosaic_services.environments.errors import BuildError, DescriptionError
from mosaic_services.environments.recipes import KIT_FOLDER, Recipe
from mosaic_services.environments.wheels import build_wheel
from mosaic_services.processes import MARK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["build"]

_OUTPUT_KEPT = 40
# Seconds that a worker may take to describe itself. Importing a large library from a cold disk is slow.
_DESCRIBE_S = 300.0


def build(recipe: Recipe, profile: str, progress: Callable[[str, float], None]) -> Environment:
    """Build an environment unless it is there; report each step and the percentage to `progress`.

    An environment is named by the hash of its content. If the lock or the code changes during the build, start again.
    """
    environment = status(recipe, profile)
    while environment.status != "installed":
        if not _build_missing(environment, progress):
            progress("lock or code have changed: starting again", 80.0)
        environment = status(recipe, profile)
        if environment.status == "installed":
            progress("installed", 100.0)
    return environment


def _build_missing(environment: Environment, progress: Callable[[str, float], None]) -> bool:
    """Build what is missing; return False if lock or code have changed meanwhile."""
    for path in (environment.venv, environment.site):
        path.parent.mkdir(parents=True, exist_ok=True)
    _note_whose(environment)  # First, so that a concurrent `remove` sees what is needed.
    with _only_one(environment.venv, progress, percent=0.0) as lock:
        if not environment.has_packages and not _build_venv(environment, progress, lock):
            return False
    with _only_one(environment.site, progress, percent=80.0) as lock:
        return environment.status == "installed" or _build_site(environment, progress, lock)


def _is_current(environment: Environment) -> bool:
    """Whether the environment's name still matches lock and code."""
    now = status(environment.recipe, environment.profile)
    return (now.venv, now.site) == (environment.venv, environment.site)


@contextmanager
def _only_one(path: Path, progress: Callable[[str, float], None], percent: float) -> Iterator[int]:
    """Let one process at a time build a folder; others wait and then find it built.

    Child processes inherit the lock. If a builder is killed, its pip goes on for a while, and nobody else may start
    before it ends.
    """
    with lock_of(path).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another build of the same environment", percent)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield file.fileno()


def _build_venv(environment: Environment, progress: Callable[[str, float], None], held: int) -> bool:
    """Build the virtualenv; return False if the lock has changed meanwhile."""
    # Remove what an interrupted build left.
    shutil.rmtree(environment.venv, ignore_errors=True)
    progress("creating a virtualenv", 1.0)
    make = [str(environment.base_python), "-m", "venv", str(environment.venv)]
    _run("creating a virtualenv", make, lambda _: None, held)
    lock = environment.recipe.profiles[environment.profile].lock
    wanted = sum(1 for line in lock.read_text().splitlines() if _name(line))
    seen, reached = 0, 0.0

    def tell(step: str, percent: float) -> None:
        nonlocal reached
        reached = max(reached, percent)  # There may be two installations.
        progress(step, reached)

    def follow(line: str) -> None:
        nonlocal seen
        words = line.split()
        if line.startswith(("Collecting ", "Processing ")) and len(words) > 1:
            seen += 1
            tell(f"fetching {words[1].rsplit('/', 1)[-1]}", min(60.0, 5.0 + 55.0 * seen / max(wanted, 1)))
        elif line.startswith("Building wheel for ") and "finished" not in line:
            tell(f"building {words[3]}", 62.0)
        elif line.startswith("Installing collected packages"):
            tell(f"installing {wanted} packages", 65.0)

    _install_lock(environment, follow, held)
    if status(environment.recipe, environment.profile).venv != environment.venv:
        shutil.rmtree(environment.venv)
        return False
    _mark(environment.venv, {"lock": lock.read_text()})
    return True


def _install_lock(environment: Environment, follow: Callable[[str], None], held: int) -> None:
    """Install the locked packages, from wheels only unless the profile has build constraints.

    Build constraints are for packages that come as source and need old build tools. The requirements of such packages
    often conflict, so the lock is installed without resolving dependencies. The build tools, which the constraints
    name, are installed last and unconstrained, because the environment may need newer ones than the builds.
    """
    step = "installing the locked packages"
    profile = environment.recipe.profiles[environment.profile]
    if profile.build_constraints is None:
        options = ["--only-binary", ":all:", *(["--no-deps"] if profile.no_deps else [])]
        _pip(step, environment, [*options, "-r", str(profile.lock)], follow, held)
        return
    lines = profile.lock.read_text().splitlines()
    tools = {_name(line) for line in profile.build_constraints.read_text().splitlines()}
    # A variable, not an option: it also reaches the pip that prepares a build.
    constrained = {"PIP_CONSTRAINT": str(profile.build_constraints)}
    with tempfile.TemporaryDirectory(prefix="mosaic-build-") as scratch:
        for file, are_tools, variables in (("packages", False, constrained), ("tools", True, {})):
            listed = Path(scratch) / file
            listed.write_text("\n".join(line for line in lines if (_name(line) in tools) == are_tools))
            arguments = ["--use-pep517", "--no-deps", "-r", str(listed)]
            _pip(step, environment, arguments, follow, held, variables)


def _name(line: str) -> str:
    """Return the package that a line of a lock or of constraints names; empty for other lines."""
    found = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", line)
    return re.sub(r"[._-]+", "-", found[0]).lower() if found else ""


def _build_site(environment: Environment, progress: Callable[[str, float], None], held: int) -> bool:
    """Install the kit and the worker; return False if their code has changed meanwhile."""
    shutil.rmtree(environment.site, ignore_errors=True)
    progress(f"installing {environment.recipe.package}", 85.0)
    with tempfile.TemporaryDirectory(prefix="mosaic-build-") as scratch:
        # From a copy, since setuptools writes into the folder that it builds from.
        copies = [
            _copy(folder, Path(scratch) / str(n)) for n, folder in enumerate((KIT_FOLDER, environment.recipe.folder))
        ]
        if not _is_current(environment):
            return False
        packages = [build_wheel(copy, Path(scratch) / "wheels") or copy for copy in copies]
        arguments = ["--no-deps", "--target", str(environment.site), *map(str, packages)]
        _pip(f"installing {environment.recipe.package}", environment, arguments, lambda _: None, held)
    progress("asking the worker to describe itself", 95.0)
    command = [str(environment.python), "-m", "mosaic_worker.discover", environment.recipe.worker]
    step = f"describing {environment.recipe.worker}"
    try:
        found = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            env={**environment.environ(), **({MARK: os.environ[MARK]} if MARK in os.environ else {})},
            timeout=_DESCRIBE_S,
        )
    except subprocess.TimeoutExpired:
        raise DescriptionError(step, [f"it did not answer within {_DESCRIBE_S:.0f} s"]) from None
    try:
        description = json.loads(found.stdout or "{}").get(environment.recipe.worker) or {}
    except (ValueError, AttributeError):
        raise DescriptionError(step, [f"its answer is not a JSON object: {found.stdout[:200]!r}"]) from None
    if description.get("error"):
        raise DescriptionError(step, [*found.stderr.splitlines()[-_OUTPUT_KEPT:], str(description["error"])])
    if found.returncode != 0 or not description:
        raise DescriptionError(step, found.stderr.splitlines()[-_OUTPUT_KEPT:])
    if not _is_current(environment):  # The description may come from a checkout, which is not copied.
        shutil.rmtree(environment.site)
        return False
    _note_whose(environment)  # Again: it may have been removed during the build.
    _mark(environment.site, description)
    return True


def _copy(folder: Path, scratch: Path) -> Path:
    copy = scratch / folder.name
    for path in source_files(folder):
        target = copy / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    return copy


def _pip(
    step: str,
    environment: Environment,
    arguments: list[str],
    follow: Callable[[str], None],
    held: int,
    variables: dict[str, str] | None = None,
) -> None:
    pip = [str(environment.python), "-m", "pip", "--disable-pip-version-check", "--no-input", "install"]
    _run(step, [*pip, *arguments], follow, held, variables or {})


def _run(
    step: str, command: list[str], follow: Callable[[str], None], held: int, variables: dict[str, str] | None = None
) -> None:
    kept: deque[str] = deque(maxlen=_OUTPUT_KEPT)
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONHOME")}
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**clean, **(variables or {})},
        pass_fds=(held,),
    ) as process:
        for line in process.stdout or ():
            kept.append(line.rstrip())
            follow(line.strip())
    if process.returncode != 0:
        raise BuildError(step, list(kept))


def _note_whose(environment: Environment) -> None:
    """Write the note beside a site: its worker, its profile and its virtualenv."""
    whose = {"worker": environment.recipe.worker, "profile": environment.profile, "venv": environment.venv.name}
    _write(note_of(environment.site), whose)


def _mark(folder: Path, content: object) -> None:
    """Mark a folder as complete."""
    _write(folder / COMPLETE, content)


def _write(path: Path, content: object) -> None:
    """Write a file that is either absent or whole."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    scratch.write_text(json.dumps(content))
    scratch.replace(path)
