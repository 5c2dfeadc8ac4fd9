"""Recipes: the environments that a worker folder declares."""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from mosaic_services.environments.errors import RecipeError, UnknownProfileError, UnknownWorkerError
from mosaic_services.environments.upstreams import known_upstream

if TYPE_CHECKING:
    from mosaic_services.home import StackHome

__all__ = [
    "KIT_FOLDER",
    "Profile",
    "Recipe",
    "find_recipes",
    "forget",
    "read_recipe",
    "recipe_for",
    "register",
    "registered",
    "require_own_name",
]

# The workers of this checkout and the kit that they share.
SHIPPED_WORKERS = Path(__file__).parents[3] / "workers"
KIT_FOLDER = SHIPPED_WORKERS / "kit"
_ENTRY_POINTS = "mosaic.workers"
# The same patterns as in a run's spec.
_WORKER = re.compile(r"[a-z0-9_-]+")
_PROFILE = re.compile(r"[a-z0-9_.-]+")


@dataclass(frozen=True)
class Profile:
    """One environment of a worker: a locked list of packages and a range of Python versions."""

    name: str
    lock: Path
    python: str
    summary: str
    env: dict[str, str] = field(default_factory=dict)
    # Modules that a template imports for warm starts; None for no template.
    warm: tuple[str, ...] | None = None
    # Constraints for building packages that come as source only.
    build_constraints: Path | None = None
    # Whether the lock is installed as it is, without what its packages ask for.
    no_deps: bool = False
    # A file that every checkout of the library has, if the worker accepts one.
    upstream: str | None = None


@dataclass(frozen=True)
class Recipe:
    """A worker that can be installed."""

    worker: str
    folder: Path
    package: str
    profiles: dict[str, Profile]
    # The checkout that this worker was given in this home.
    upstream: Path | None = None

    def profile(self, name: str) -> Profile:
        """Return a profile by name."""
        if name not in self.profiles:
            raise UnknownProfileError(self.worker, name, self.profiles)
        return self.profiles[name]


def read_recipe(folder: Path) -> Recipe:
    """Read `pyproject.toml` (for the entry point) and `profiles.toml` of a worker folder."""
    worker, package = _entry_point(folder)
    profiles = {name: _profile(folder, name, table) for name, table in _read_toml(folder / "profiles.toml").items()}
    if not profiles:
        raise RecipeError(f"{folder}/profiles.toml defines no profile; [default] is needed at least")
    return Recipe(worker, folder.absolute(), package, profiles)


def _entry_point(folder: Path) -> tuple[str, str]:
    """Return the worker's name and its package."""
    points: Any = _read_toml(folder / "pyproject.toml")
    for step in ("project", "entry-points", _ENTRY_POINTS):
        points = points.get(step, {}) if isinstance(points, dict) else {}
    if not isinstance(points, dict) or len(points) != 1:
        count = len(points) if isinstance(points, dict) else "no"
        raise RecipeError(
            f'{folder}/pyproject.toml has {count} entries in [project.entry-points."{_ENTRY_POINTS}"]; '
            'exactly one is needed, e.g. my = "my_worker:get_worker_metadata"'
        )
    ((worker, target),) = points.items()
    if not _WORKER.fullmatch(worker):
        raise RecipeError(f"{folder}/pyproject.toml names the worker {worker!r}; only a-z, 0-9, _ and - are allowed")
    package = target.split(":")[0].split(".")[0].strip() if isinstance(target, str) else ""
    if not package.isidentifier():
        raise RecipeError(f"{folder}/pyproject.toml: {worker} = {target!r} is not of the form package:function")
    return worker, package


def _profile(folder: Path, name: str, table: Any) -> Profile:
    where = f"{folder}/profiles.toml: [{name}]"
    if not isinstance(table, dict):
        raise RecipeError(f"{folder}/profiles.toml: {name!r} is not a table; profiles look like [default]")
    if not _PROFILE.fullmatch(name):
        raise RecipeError(f"{where}: only a-z, 0-9, _, . and - are allowed in a profile's name")
    if unknown := set(table) - {"lock", "python", "summary", "env", "warm", "build_constraints", "no_deps", "upstream"}:
        raise RecipeError(f"{where} has unknown field {min(unknown)!r}")
    given = {"lock": f"locks/{name}.lock", "python": ">=3.11", "summary": "", **table}
    for field_name in ("lock", "python", "summary", "build_constraints", "upstream"):
        if not isinstance(given.get(field_name, ""), str):
            raise RecipeError(f"{where}: {field_name} is {given[field_name]!r}, not a string")
    if type(given.get("no_deps", False)) is not bool:
        raise RecipeError(f"{where}: no_deps is {given['no_deps']!r}, not true or false")
    env = given.get("env", {})
    if not isinstance(env, dict):
        raise RecipeError(f"{where}: env is {env!r}, not a table of names and values")
    warm = given.get("warm")
    if warm is not None and not _are_modules(warm):
        raise RecipeError(f'{where}: warm is {warm!r}, not a list of modules like ["torch", "gymnasium"]')
    lock = folder / given["lock"]
    if not lock.is_file():
        raise RecipeError(f"{where} names the lock {lock}, which does not exist")
    build_constraints = folder / given["build_constraints"] if "build_constraints" in given else None
    if build_constraints is not None and not build_constraints.is_file():
        raise RecipeError(f"{where} names the build constraints {build_constraints}, which do not exist")
    try:
        SpecifierSet(given["python"])
    except InvalidSpecifier:
        raise RecipeError(f"{where}: python = {given['python']!r} is not a version range like >=3.11,<3.14") from None
    return Profile(
        name=name,
        lock=lock,
        python=given["python"],
        summary=given["summary"],
        env={key: str(value) for key, value in env.items()},
        warm=None if warm is None else tuple(warm),
        build_constraints=build_constraints,
        no_deps=given.get("no_deps", False),
        upstream=given.get("upstream"),
    )


def _are_modules(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(name, str) and all(part.isidentifier() for part in name.split(".")) for name in value
    )


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecipeError(f"{path} is missing; a worker folder has pyproject.toml and profiles.toml") from None
    except (ValueError, RecursionError) as error:  # Not TOML, not UTF-8, not a path, or nested too deep.
        raise RecipeError(f"{path}: {error}") from None
    except OSError as error:
        raise RecipeError(f"{path} cannot be read: {error.strerror}") from None


def _candidates(home: StackHome) -> list[Path]:
    """Yield every folder that may hold a worker; the first of a name wins."""
    folders = [Path(each) for each in os.environ.get("MOSAIC_WORKERS", "").split(":") if each]
    folders += sorted(path.parent for path in SHIPPED_WORKERS.glob("*/profiles.toml"))
    notes = (_read_note(note) for note in sorted((home.path / "workers").glob("*")))
    return folders + [folder for folder in notes if folder is not None]


def _read_note(note: Path) -> Path | None:
    try:
        text = note.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None
    return Path(text) if text else None


def find_recipes(home: StackHome) -> list[Recipe]:
    """Return all workers: from `$MOSAIC_WORKERS` (colon-separated folders), shipped, and registered."""
    found: dict[str, Recipe] = {}
    for folder in _candidates(home):
        try:
            recipe = read_recipe(folder)
        except RecipeError:
            # A missing or broken folder must not hide the others. `recipe_for` reports its error.
            continue
        found.setdefault(recipe.worker, _with_upstream(recipe, home))
    return sorted(found.values(), key=lambda recipe: recipe.worker)


def _with_upstream(recipe: Recipe, home: StackHome) -> Recipe:
    return replace(recipe, upstream=known_upstream(recipe.worker, home))


def recipe_for(name_or_path: str, home: StackHome) -> Recipe:
    """Find a worker by name, or read the folder if a path is given."""
    if "/" in name_or_path or name_or_path == ".":
        return _with_upstream(read_recipe(Path(name_or_path).absolute()), home)
    recipes = {recipe.worker: recipe for recipe in find_recipes(home)}
    if name_or_path in recipes:
        return recipes[name_or_path]
    note = _read_note(home.path / "workers" / name_or_path)
    if note is not None:
        return _with_upstream(read_recipe(note), home)
    for folder in _candidates(home):
        # Report the error of a folder of that name that cannot be read.
        if folder.name in (name_or_path, f"{name_or_path}_worker", f"{name_or_path}-worker"):
            read_recipe(folder)
    raise UnknownWorkerError(name_or_path, recipes)


def require_own_name(recipe: Recipe, home: StackHome) -> None:
    """Refuse a worker folder if the home has another worker of that name."""
    for known in find_recipes(home):
        if known.worker == recipe.worker and known.folder != recipe.folder:
            raise RecipeError(f"worker name {recipe.worker!r} is already taken by {known.folder}")


def register(recipe: Recipe, home: StackHome) -> None:
    """Register a worker folder in a home, under the worker's name."""
    require_own_name(recipe, home)
    if recipe.worker in {known.worker for known in find_recipes(home)}:
        return
    folder = home.path / "workers"
    folder.mkdir(parents=True, exist_ok=True)
    scratch = home.path / f"workers.{recipe.worker}.new"
    scratch.write_text(str(recipe.folder))
    scratch.replace(folder / recipe.worker)


def registered(home: StackHome) -> set[str]:
    """Return the names of the workers that are registered in a home."""
    return {note.name for note in (home.path / "workers").glob("*")}


def forget(worker: str, home: StackHome) -> None:
    """Undo `register`; the worker's folder stays."""
    (home.path / "workers" / worker).unlink(missing_ok=True)
