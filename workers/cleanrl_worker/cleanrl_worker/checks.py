"""Checks before a run starts: the environment is registered, and its action space fits the algorithm."""

import importlib
import importlib.util
from types import ModuleType
from typing import Any

from cleanrl_worker.registry import Algorithm
from mosaic_worker.config import near
from mosaic_worker.errors import ConfigError
from mosaic_worker.modules import UserModuleError, import_user_module

__all__ = ["check_environment", "environment_ids", "library", "require_registered", "text_of"]

_OWN_NAMES = ("envpool", "procgen", "pettingzoo")
"""Words in the names of algorithms whose environments are not registered with Gymnasium."""
_REGISTER = ("ale_py", "minigrid", "pybullet_envs")
"""Packages that register environments when they are imported."""


def library() -> str:
    """The environment library of this profile."""
    return "gymnasium" if importlib.util.find_spec("gymnasium") is not None else "gym"


def check_environment(env_id: str, algorithm: Algorithm) -> None:
    """Refuse an environment that is not registered, or whose action space the algorithm does not support."""
    if any(word in algorithm.name for word in _OWN_NAMES):
        return
    require_registered(env_id, "env_id")
    gym = importlib.import_module(library())
    try:
        env = gym.make(env_id)
    except Exception as error:
        raise ConfigError(f"env_id: {env_id} cannot be made: {type(error).__name__}: {error}") from error
    try:
        space = env.action_space
    finally:
        env.close()
    kind = {"Discrete": "discrete", "Box": "continuous"}.get(type(space).__name__)
    if kind != algorithm.actions:
        instead = f" Try {_instead_of(algorithm)}." if kind is not None else ""
        raise ConfigError(
            f"{algorithm.name} needs a {algorithm.actions} action space; {env_id} has {text_of(space)}.{instead}"
        )


def _instead_of(algorithm: Algorithm) -> str:
    """Return the nearest algorithm for the other kind of action space."""
    if algorithm.actions == "continuous":
        return "ppo"
    return "ppo_continuous_action" if algorithm.family == "PPO" else "sac_continuous_action"


def require_registered(env_id: str, field: str) -> None:
    """Refuse an id that is not registered, and suggest similar ones."""
    gym = importlib.import_module(library())
    module, _, name = env_id.rpartition(":")
    if module:
        try:
            import_user_module(module)
        except UserModuleError as error:
            raise ConfigError(f"{field}: {env_id!r}: {error}") from error
    if not _is_known(gym, name) and not _is_known(_with_packages(gym), name):
        known = _registered(gym)
        missing = f"no such environment among the {len(known)} registered"
        raise ConfigError(f"{field}: {env_id!r} is not allowed: {missing}{near(name, known)}")


def environment_ids() -> list[str]:
    """Return all ids that the packages of this profile register."""
    return _registered(_with_packages(importlib.import_module(library())))


def _with_packages(gym: ModuleType) -> ModuleType:
    for package in _REGISTER:
        if importlib.util.find_spec(package) is not None:
            importlib.import_module(package)
    return gym


def _is_known(gym: ModuleType, name: str) -> bool:
    try:
        gym.spec(name)
    except gym.error.Error:
        return False
    return True


def _registered(gym: ModuleType) -> list[str]:
    registry = gym.envs.registry
    return list(getattr(registry, "env_specs", registry))


def text_of(space: Any) -> str:
    """Format a space briefly: Box(-2.0, 2.0, (1,))."""
    if type(space).__name__ != "Box":
        return str(space)
    low, high = space.low, space.high
    if (low == low.flat[0]).all() and (high == high.flat[0]).all():
        return f"Box({low.flat[0]}, {high.flat[0]}, {space.shape})"
    return f"Box({low.min()}, {high.max()}, {space.shape})"
