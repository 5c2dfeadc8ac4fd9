"""Recipes: what a worker folder says about the environments it wants."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic_services.environments.errors import RecipeError, UnknownProfileError, UnknownWorkerError

if TYPE_CHECKING:
    from mosaic_bus.home import Home

__all__ = ["KIT_FOLDER", "Profile", "Recipe", "find_recipes", "read_recipe", "recipe_for", "register"]

# The workers that come with this checkout, and the kit that all of them share.
SHIPPED_WORKERS = Path(__file__).parents[3] / "workers"
KIT_FOLDER = SHIPPED_WORKERS / "kit"
_ENTRY_POINTS = "mosaic.workers"


@dataclass(frozen=True)
class Profile:
    """One environment of a worker: a locked list of packages and the Pythons it works with."""

    name: str
    lock: Path
    python: str
    summary: str
    env: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """A worker that can be installed: its folder, its package, its profiles."""

    worker: str
    folder: Path
    package: str
    profiles: dict[str, Profile]

    def profile(self, name: str) -> Profile:
        """Return a profile by name."""
        if name not in self.profiles:
            raise UnknownProfileError(self.worker, name, self.profiles)
        return self.profiles[name]


def read_recipe(folder: Path) -> Recipe:
    """Read `pyproject.toml` (for the entry point) and `profiles.toml` of a worker folder."""
    project = _read_toml(folder / "pyproject.toml").get("project", {})
    points = project.get("entry-points", {}).get(_ENTRY_POINTS, {})
    if len(points) != 1:
        raise RecipeError(
            f'{folder}/pyproject.toml has {len(points)} entries in [project.entry-points."{_ENTRY_POINTS}"]; '
            'exactly one is needed, e.g. my = "my_worker:get_worker_metadata"'
        )
    ((worker, target),) = points.items()
    profiles = {}
    for name, table in _read_toml(folder / "profiles.toml").items():
        unknown = set(table) - {"lock", "python", "summary", "env"}
        if unknown:
            raise RecipeError(f"{folder}/profiles.toml: [{name}] has unknown field {min(unknown)!r}")
        lock = folder / table.get("lock", f"locks/{name}.lock")
        if not lock.is_file():
            raise RecipeError(f"{folder}/profiles.toml: [{name}] names the lock {lock}, which does not exist")
        profiles[name] = Profile(
            name=name,
            lock=lock,
            python=table.get("python", ">=3.11"),
            summary=table.get("summary", ""),
            env={key: str(value) for key, value in table.get("env", {}).items()},
        )
    if not profiles:
        raise RecipeError(f"{folder}/profiles.toml defines no profile; [default] is needed at least")
    return Recipe(worker, folder.absolute(), target.split(":")[0].split(".")[0], profiles)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise RecipeError(f"{path} is missing; a worker folder has pyproject.toml and profiles.toml") from None
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{path}: {error}") from None


def find_recipes(home: Home) -> list[Recipe]:
    """All workers known here: `$MOSAIC_WORKERS` (folders, colon-separated), those shipped, those registered."""
    folders = [Path(each) for each in os.environ.get("MOSAIC_WORKERS", "").split(":") if each]
    candidates = [*folders, *sorted(path.parent for path in SHIPPED_WORKERS.glob("*/profiles.toml"))]
    candidates += [Path(note.read_text().strip()) for note in sorted((home.path / "workers").glob("*"))]
    found: dict[str, Recipe] = {}
    for folder in candidates:
        try:
            recipe = read_recipe(folder)
        except RecipeError:
            # A folder that went away or broke must not take the other workers with it; using it by name says why.
            continue
        found.setdefault(recipe.worker, recipe)
    return sorted(found.values(), key=lambda recipe: recipe.worker)


def recipe_for(name_or_path: str, home: Home) -> Recipe:
    """Find a worker by name, or read the folder if a path is given."""
    if "/" in name_or_path or name_or_path == ".":
        return read_recipe(Path(name_or_path).absolute())
    recipes = {recipe.worker: recipe for recipe in find_recipes(home)}
    if name_or_path in recipes:
        return recipes[name_or_path]
    note = home.path / "workers" / name_or_path
    if note.is_file():
        return read_recipe(Path(note.read_text().strip()))
    raise UnknownWorkerError(name_or_path, recipes)


def register(recipe: Recipe, home: Home) -> None:
    """Make a third party's worker folder known to the stack of a home, under the worker's name."""
    taken = {known.worker: known for known in find_recipes(home)}.get(recipe.worker)
    if taken is not None:
        if taken.folder != recipe.folder:
            raise RecipeError(f"worker name {recipe.worker!r} is already taken by {taken.folder}")
        return
    folder = home.path / "workers"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / recipe.worker).write_text(str(recipe.folder))
