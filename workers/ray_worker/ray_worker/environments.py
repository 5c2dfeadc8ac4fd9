"""Which environments there are, how each is made for RLlib, and what is refused before a training starts."""

import functools
import importlib
import importlib.util
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gymnasium import spaces

from mosaic_worker.config import near
from mosaic_worker.errors import ConfigError

__all__ = ["AGENT", "FAMILIES", "Environment", "Spaces", "environment_ids", "make", "resolve", "spaces_of"]

AGENT = "default_agent"
"""The only agent of a Gymnasium environment, as RLlib names it."""
_PACKAGES = {
    "sisl": "pettingzoo.sisl",
    "classic": "pettingzoo.classic",
    "butterfly": "pettingzoo.butterfly",
    "mpe": "mpe2",
}
FAMILIES = (*_PACKAGES, "gymnasium", "module")
_MODULE = "module:"
"""Begins the `env_id` of your own environments: a Python module like PettingZoo's, with `env` or `parallel_env`."""
_AEC, _PARALLEL, _GYMNASIUM = "AEC", "PARALLEL", "GYMNASIUM"
_MAKERS = {_AEC: "env", _PARALLEL: "parallel_env"}
_CARDS = {
    "hanabi_v5": "shimmy",
    "gin_rummy_v4": "rlcard",
    "leduc_holdem_v4": "rlcard",
    "texas_holdem_v4": "rlcard",
    "texas_holdem_no_limit_v6": "rlcard",
}
"""Environments that need a package, which this worker's profile does not have."""
_GYM_NEEDS = {"box2d": "Box2D", "mujoco": "mujoco", "phys2d": "jax", "tabular": "jax"}
_PLAIN = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete)


@dataclass(frozen=True)
class Environment:
    """An environment that exists, with everything decided. It can be pickled and made in another process."""

    family: str
    env_id: str
    api: str
    """AEC, PARALLEL or GYMNASIUM."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_multi(self) -> bool:
        """Whether it has several agents."""
        return self.api != _GYMNASIUM


@dataclass(frozen=True)
class Spaces:
    """What the agents of an environment see and do, by agent."""

    raw: Mapping[str, Any]
    """Observations as the environment has them."""
    observations: Mapping[str, Any]
    """Observations as networks have them: see `views.AgentView`."""
    actions: Mapping[str, Any]
    state_size: int = 0
    """The length of the global state, if it was asked for."""

    @property
    def agents(self) -> tuple[str, ...]:
        """All agents that may appear."""
        return tuple(self.actions)

    @property
    def has_masks(self) -> bool:
        """Whether observations say which actions are legal."""
        return any(isinstance(space, spaces.Dict) and "action_mask" in space.spaces for space in self.raw.values())

    def roles(self) -> dict[str, tuple[str, ...]]:
        """Group agents that see and do alike, so that one network can serve a group.

        The group of all agents is named `shared`; smaller ones have their agents' names without numbers.
        """
        groups: list[list[str]] = []
        for agent in self.agents:
            same = (group for group in groups if self._is_alike(group[0], agent))
            group = next(same, None)
            if group is None:
                groups.append([agent])
            else:
                group.append(agent)
        if len(groups) == 1:
            return {"shared": tuple(groups[0])}
        names: dict[str, tuple[str, ...]] = {}
        for group in groups:
            name = "-".join(dict.fromkeys(re.sub(r"_?\d+$", "", agent) or agent for agent in group))
            names[name if name not in names else group[0]] = tuple(group)
        return names

    def _is_alike(self, one: str, other: str) -> bool:
        return (self.observations[one], self.actions[one]) == (self.observations[other], self.actions[other])


def environment_ids() -> list[str]:
    """List every environment that this worker can make."""
    pettingzoo = {name for names in _pettingzoo().values() for name in names if _lacks(name) is None}
    return sorted({*pettingzoo, *_gymnasium()})


def resolve(
    env_id: str, family: str | None = None, api_type: str | None = None, kwargs: Mapping[str, Any] | None = None
) -> Environment:
    """Find an environment; ConfigError if there is none, or if it does not have that family or API."""
    found = _family_of(env_id, family)
    if (package := _lacks(env_id)) is not None:
        raise ConfigError(f"environment.env_id: {env_id} needs the package {package}, which this profile does not have")
    given = dict(kwargs or {})
    if "render_mode" in given:
        raise ConfigError("environment.env_kwargs.render_mode: fastlane_video_mode sets it")
    if found == "gymnasium":
        if api_type:
            raise ConfigError(f"environment.api_type: {env_id} is of Gymnasium and has one agent; leave api_type out")
        return Environment(found, env_id, _GYMNASIUM, given)
    module = _module(found, env_id)
    apis = [api for api, maker in _MAKERS.items() if callable(getattr(module, maker, None))]
    if not apis:
        raise ConfigError(f"environment.env_id: {env_id} is no environment: it has neither env nor parallel_env")
    if api_type and api_type not in apis:
        reason = "its agents act in turn" if apis == [_AEC] else "its agents act at once"
        raise ConfigError(
            f"environment.api_type: {env_id} has only the API {apis[0]}, not {api_type}: {reason}. Give {apis[0]}"
        )
    return Environment(found, env_id, api_type or apis[-1], given)


def make(
    environment: Environment,
    *,
    with_state: bool = False,
    render_mode: str | None = None,
    wrap: Callable[[Any], Any] = lambda env: env,
) -> Any:
    """Make an environment for RLlib. `wrap` gets the library's own environment, before it is converted.

    Returns a MultiAgentEnv, or for Gymnasium a plain environment. `with_state` adds the global state to observations.
    """
    from ray_worker import wrappers  # noqa: PLC0415 - it imports RLlib, which takes seconds

    if environment.api == _GYMNASIUM:
        import gymnasium  # noqa: PLC0415 - as above

        return wrappers.SingleEnv(
            wrap(gymnasium.make(environment.env_id, render_mode=render_mode, **environment.kwargs))
        )
    maker = getattr(_module(environment.family, environment.env_id), _MAKERS[environment.api])
    raw = wrap(maker(render_mode=render_mode, **environment.kwargs))
    kind = wrappers.TurnEnv if environment.api == _AEC else wrappers.ParallelEnv
    return kind(raw, with_state=with_state)


def spaces_of(environment: Environment, *, with_state: bool = False) -> Spaces:
    """Make an environment, look at its spaces and close it; ConfigError if RLlib cannot use them."""
    try:
        env = make(environment, with_state=with_state)
    except ConfigError:
        raise
    except Exception as error:
        where = (
            "environment.env_kwargs" if isinstance(error, TypeError) and environment.kwargs else "environment.env_id"
        )
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"{where}: {environment.env_id} cannot be made: {reason}") from error
    try:
        views = env.views if environment.is_multi else {AGENT: env.view}
        found = Spaces(
            {agent: view.raw for agent, view in views.items()},
            {agent: view.space for agent, view in views.items()},
            {agent: view.actions for agent, view in views.items()},
            next(iter(views.values())).state_size,
        )
    finally:
        env.close()
    for agent, space in found.actions.items():
        starts_elsewhere = isinstance(space, spaces.Discrete) and space.start != 0
        if not isinstance(space, _PLAIN) or starts_elsewhere:
            raise ConfigError(
                f"environment.env_id: {environment.env_id}: RLlib cannot use the actions of {agent}: {space}"
            )
    return found


def _family_of(env_id: str, family: str | None) -> str:
    """Find the family of an environment, or check the one that was given."""
    if not env_id:
        raise ConfigError("environment.env_id: missing; give an environment, such as CartPole-v1")
    given = (family or "").strip().lower()
    if given and given not in FAMILIES:
        raise ConfigError(f"environment.family: {family!r} is none of {', '.join(FAMILIES)}{near(given, FAMILIES)}")
    if given == "module" or (not given and env_id.startswith(_MODULE)):
        return "module"
    found = next((name for name, ids in _pettingzoo().items() if env_id in ids), None)
    if found is None and (env_id in _gymnasium() or ":" in env_id):  # Gymnasium imports the module before the colon.
        found = "gymnasium"
    if found is None:
        known = environment_ids()
        raise ConfigError(
            f"environment.env_id: {env_id!r} is not among the {len(known)} environments{near(env_id, known)}"
        )
    if given and given != found:
        raise ConfigError(f"environment.family: {given} has no {env_id}; it is in {found}")
    return found


def _module(family: str, env_id: str) -> Any:
    name = env_id.removeprefix(_MODULE) if family == "module" else f"{_PACKAGES[family]}.{env_id}"
    try:
        return importlib.import_module(name)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"environment.env_id: {name} cannot be imported: {reason}") from error


def _lacks(env_id: str) -> str | None:
    """The package that an environment needs and that is not there."""
    package = _CARDS.get(env_id)
    return package if package is not None and importlib.util.find_spec(package) is None else None


@functools.cache
def _pettingzoo() -> dict[str, tuple[str, ...]]:
    """List PettingZoo's environments by family, without importing them."""
    return {family: _files_of(package) for family, package in _PACKAGES.items()}


def _files_of(package: str) -> tuple[str, ...]:
    root, _, folder = package.partition(".")
    spec = importlib.util.find_spec(root)
    if spec is None or not spec.submodule_search_locations:
        return ()
    path = Path(spec.submodule_search_locations[0]) / folder
    return tuple(sorted(file.stem for file in path.glob("*_v*.py")))


@functools.cache
def _gymnasium() -> tuple[str, ...]:
    """Every environment that Gymnasium registers and whose packages are there."""
    registry = importlib.import_module("gymnasium").envs.registry
    return tuple(name for name, spec in registry.items() if _is_there(spec.entry_point))


def _is_there(entry_point: Any) -> bool:
    """Whether the code of an environment can be imported; a retired one has a function that raises instead."""
    if not isinstance(entry_point, str):
        return False
    needed = next((package for part, package in _GYM_NEEDS.items() if f".{part}." in entry_point), None)
    return needed is None or importlib.util.find_spec(needed) is not None
