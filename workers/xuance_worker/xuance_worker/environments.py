"""Which environments there are, which XuanCe wrapper makes them, and what is refused before a training starts."""

import functools
import importlib
import importlib.util
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mosaic_worker.config import near
from mosaic_worker.errors import ConfigError
from xuance_worker.registry import Agent

__all__ = ["Spaces", "check_task", "environment_ids", "family_of", "spaces_of"]

_PETTINGZOO = ("mpe", "sisl", "butterfly")
_WRAPPERS = {
    "classic_control": "Classic Control",
    "box2d": "Box2D",
    "mujoco": "MuJoCo",
    "atari": "Atari",
    "minigrid": "MiniGrid",
}
"""Families of single-agent environments, and XuanCe's name of the wrapper that makes them."""
_ENTRY_POINTS = {"ale_py": "atari", "minigrid": "minigrid"}
_GYM_FAMILIES = ("box2d", "mujoco")
_COMPETITIVE = ("simple_adversary", "simple_crypto", "simple_push", "simple_tag", "simple_world_comm")


@dataclass(frozen=True)
class Spaces:
    """What the agents of an environment see and do."""

    env: str
    """The family, as in the config."""
    wrapper: str
    """XuanCe's name of the wrapper."""
    agents: tuple[str, ...]
    """Empty for a single-agent environment."""
    observations: Mapping[str, Any]
    """By agent; of a single-agent environment, by an empty name."""
    actions: Mapping[str, Any]
    state: Any = None

    @property
    def is_continuous(self) -> bool:
        """Whether actions are real numbers."""
        return all(type(space).__name__ == "Box" for space in self.actions.values())

    @property
    def is_equal(self) -> bool:
        """Whether all agents see and do alike, so that one network can serve them all."""
        shapes = {
            (space.shape, getattr(self.actions[agent], "n", None), self.actions[agent].shape)
            for agent, space in self.observations.items()
        }
        return len(shapes) == 1


def environment_ids() -> list[str]:
    """List every environment that this worker can make."""
    return sorted({*(name for names in _pettingzoo().values() for name in names), *_gymnasium()})


def family_of(env: str, env_id: str) -> str:
    """Find the family of an environment, or check the one that was given."""
    given = env.strip().lower().replace(" ", "_")
    families = [family for family, names in _pettingzoo().items() if env_id in names]
    if not families and env_id in _gymnasium():
        families = [_gym_family(env_id)]
    if not families:
        known = environment_ids()
        raise ConfigError(f"env_id: {env_id!r} is not among the {len(known)} environments{near(env_id, known)}")
    if given and given not in families:
        raise ConfigError(f"env: {env!r} has no {env_id}; it is in {families[0]}")
    return families[0]


def spaces_of(env: str, env_id: str, *, is_continuous: bool) -> Spaces:
    """Make an environment, look at its spaces and close it. MPE has discrete and continuous actions to choose from."""
    from xuance_worker.wrappers import make_raw, wrapper_of  # noqa: PLC0415 - it imports XuanCe

    is_multi = env in _PETTINGZOO
    wrapper = env if is_multi else _WRAPPERS[env]
    arguments = Namespace(
        env_name=wrapper, env_id=env_id, env_seed=0, render_mode=None, continuous_action=is_continuous, **_WRAPPER_NEEDS
    )
    try:
        raw = make_raw(wrapper_of(wrapper), arguments)
    except Exception as error:
        raise ConfigError(f"env_id: {env_id} cannot be made: {type(error).__name__}: {error}") from error
    try:
        if is_multi:
            agents = tuple(raw.agents)
            return Spaces(env, wrapper, agents, raw.observation_space, raw.action_space, raw.state_space)
        return Spaces(env, wrapper, (), {"": raw.observation_space}, {"": raw.action_space})
    finally:
        raw.close()


def check_task(agent: Agent, env_id: str, spaces: Spaces, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse what the algorithm cannot learn in an environment; return settings that have to change for it."""
    is_multi = bool(spaces.agents)
    if is_multi != agent.is_multi:
        kind, other = ("several agents", "MAPPO") if is_multi else ("one agent", "PPO")
        raise ConfigError(f"algorithm: {agent.name} is not for environments with {kind} such as {env_id}; try {other}")
    actions = "continuous" if spaces.is_continuous else "discrete"
    plain = all(type(space).__name__ in {"Box", "Discrete"} for space in spaces.actions.values())
    if not plain or agent.actions not in {"both", actions}:
        some = next(iter(spaces.actions.values()))
        raise ConfigError(f"algorithm: {agent.name} needs {agent.actions} actions; {env_id} has {some}")
    if any(type(space).__name__ != "Box" for space in spaces.observations.values()):
        some = next(iter(spaces.observations.values()))
        raise ConfigError(f"env_id: {env_id} has observations that XuanCe does not take: {some}")
    if env_id.startswith(_COMPETITIVE) and agent.is_team:
        raise ConfigError(
            f"algorithm: {agent.name} learns one value for a team, but the agents of {env_id} are opponents; "
            "try IQL, IPPO or MADDPG"
        )
    if settings.get("use_actions_mask") and spaces.is_continuous:
        raise ConfigError("overrides.use_actions_mask: continuous actions have no mask")
    if spaces.is_equal:
        return {}
    if agent.equal_only:
        raise ConfigError(
            f"algorithm: {agent.name} needs agents that see and do alike; those of {env_id} differ. Try QMIX or IPPO"
        )
    return _for_unequal(agent)


def _for_unequal(agent: Agent) -> dict[str, Any]:
    """Give every agent a network of its own, since they see or do different things."""
    central = {"use_global_state": True} if agent.name == "MAPPO" else {}
    return {"use_parameter_sharing": False, **central}


# What XuanCe's Atari wrapper reads from the settings; the values are those of its own files.
_WRAPPER_NEEDS = {
    "obs_type": "grayscale",
    "frame_skip": 4,
    "num_stack": 4,
    "img_size": [84, 84],
    "noop_max": 30,
    "fps": 50,
}


@functools.cache
def _pettingzoo() -> dict[str, tuple[str, ...]]:
    """List PettingZoo's environments by family, without importing them."""
    spec = importlib.util.find_spec("pettingzoo")
    if spec is None or not spec.submodule_search_locations:
        return {}
    folder = Path(spec.submodule_search_locations[0])
    return {family: tuple(sorted(path.stem for path in (folder / family).glob("*_v*.py"))) for family in _PETTINGZOO}


@functools.cache
def _gymnasium() -> dict[str, Any]:
    """Every environment that Gymnasium and the packages of this profile register, and we have a wrapper for."""
    gymnasium = importlib.import_module("gymnasium")
    for package in _ENTRY_POINTS:
        if importlib.util.find_spec(package) is not None:
            gymnasium.register_envs(importlib.import_module(package))
    specs = gymnasium.envs.registry
    return {name: spec for name, spec in specs.items() if isinstance(spec.entry_point, str) and _family(spec)}


def _gym_family(env_id: str) -> str:
    return _family(_gymnasium()[env_id])


def _family(spec: Any) -> str:
    """The family of a Gymnasium environment, by where its code is; empty for those that XuanCe has no wrapper for."""
    package, _, rest = str(spec.entry_point).partition(".")
    if package in _ENTRY_POINTS:
        return _ENTRY_POINTS[package]
    family = rest.partition("envs.")[2].partition(".")[0].partition(":")[0]
    if package != "gymnasium" or family not in {"classic_control", *_GYM_FAMILIES}:
        return ""
    return family
