"""Worker environments: finds recipes, builds virtualenvs, removes them."""

from mosaic_services.environments.build import build
from mosaic_services.environments.environment import Environment, status
from mosaic_services.environments.errors import (
    BuildError,
    DescriptionError,
    EnvironmentsError,
    InUseError,
    RecipeError,
    UnknownProfileError,
    UnknownWorkerError,
    UpstreamError,
)
from mosaic_services.environments.recipes import (
    Profile,
    Recipe,
    find_recipes,
    read_recipe,
    recipe_for,
    register,
    require_own_name,
)
from mosaic_services.environments.removal import Removed, remove
from mosaic_services.environments.upstreams import check_upstream, fetch_upstream, remember_upstream

__all__ = [
    "BuildError",
    "DescriptionError",
    "Environment",
    "EnvironmentsError",
    "InUseError",
    "Profile",
    "Recipe",
    "RecipeError",
    "Removed",
    "UnknownProfileError",
    "UnknownWorkerError",
    "UpstreamError",
    "build",
    "check_upstream",
    "fetch_upstream",
    "find_recipes",
    "read_recipe",
    "recipe_for",
    "register",
    "remember_upstream",
    "remove",
    "require_own_name",
    "status",
]
