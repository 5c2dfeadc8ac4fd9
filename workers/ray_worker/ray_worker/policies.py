"""The four policy configurations: which RLModules there are, for which agents each acts, and which of them learn."""

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from mosaic_worker.errors import ConfigError
from ray_worker.config import PolicyConfiguration, RayWorkerConfig
from ray_worker.environments import AGENT, Spaces

__all__ = ["MAIN", "SINGLE", "Policies", "frozen_name", "policies_of"]

SINGLE = "default_policy"
"""RLlib's id of the only module of a single-agent training."""
MAIN = "main"
"""The module of SELF_PLAY that learns."""
_ACTOR_CRITICS = ("PPO", "A2C")


@dataclass(frozen=True)
class Policies:
    """The RLModules of a training."""

    configuration: PolicyConfiguration
    agents: Mapping[str, str]
    """The module that acts for each agent after the training."""
    members: Mapping[str, str]
    """Each module that acts, and an agent whose spaces it has."""
    trained: tuple[str, ...]
    mapping: Any
    """RLlib's function from agent and episode to module."""

    @property
    def has_central_critic(self) -> bool:
        """Whether all agents share a critic."""
        return self.configuration == PolicyConfiguration.SHARED_VALUE_FUNCTION


def frozen_name(number: int) -> str:
    """The id of a frozen copy in the league."""
    return f"frozen_{number}"


def policies_of(config: RayWorkerConfig, found: Spaces, *, is_multi: bool) -> Policies:
    """Lay out the modules; ConfigError for what a policy configuration cannot do."""
    kind = config.policy_configuration
    if not is_multi:
        if kind not in {PolicyConfiguration.PARAMETER_SHARING, PolicyConfiguration.INDEPENDENT}:
            raise ConfigError(f"policy_configuration: {kind} needs several agents; {config.environment.env_id} has one")
        return Policies(kind, {AGENT: SINGLE}, {SINGLE: AGENT}, (SINGLE,), None)
    if kind == PolicyConfiguration.PARAMETER_SHARING:
        agents = {agent: role for role, group in found.roles().items() for agent in group}
    elif kind == PolicyConfiguration.SELF_PLAY:
        return _self_play(config, found)
    else:
        agents = {agent: agent for agent in found.agents}
    if kind == PolicyConfiguration.SHARED_VALUE_FUNCTION and config.training.algorithm not in _ACTOR_CRITICS:
        raise ConfigError(
            f"policy_configuration: {kind} needs a critic that is learned with the actors, as in "
            f"{' and '.join(_ACTOR_CRITICS)}; {config.training.algorithm} is not supported"
        )
    members = {module: agent for agent, module in reversed(agents.items())}
    return Policies(kind, agents, members, tuple(members), partial(_fixed, agents))


def _self_play(config: RayWorkerConfig, found: Spaces) -> Policies:
    first = found.agents[0]
    if len(found.agents) < 2:  # noqa: PLR2004 - a game has two players or more
        raise ConfigError("policy_configuration: SELF_PLAY needs two agents or more")
    for agent in found.agents[1:]:
        alike = found.observations[agent] == found.observations[first] and found.actions[agent] == found.actions[first]
        if not alike:
            raise ConfigError(
                f"policy_configuration: SELF_PLAY needs agents that see and do alike, for a copy plays any seat; "
                f"{first} and {agent} differ. PARAMETER_SHARING shares a policy per role"
            )
    league = config.self_play
    members = {MAIN: first, **{frozen_name(number): first for number in range(league.league_size)}}
    mapping = partial(_seat, tuple(found.agents), league.league_size, league.mirror, config.seed or 0)
    return Policies(config.policy_configuration, dict.fromkeys(found.agents, MAIN), members, (MAIN,), mapping)


def _fixed(agents: Mapping[str, str], agent_id: str, *_: Any, **__: Any) -> str:
    return agents[agent_id]


def _seat(agents: tuple[str, ...], size: int, mirror: float, seed: int, agent_id: str, episode: Any, **_: Any) -> str:
    """Seat the learner and its opponents, by a hash of the episode's id that every process computes alike."""
    draw = zlib.crc32(f"{seed}/{episode.id_}".encode())
    if (draw >> 8) % 1000 < mirror * 1000:
        return MAIN
    if agents[draw % len(agents)] == agent_id:
        return MAIN
    return frozen_name(zlib.crc32(f"{seed}/{episode.id_}/{agent_id}".encode()) % size)
