"""Trained policies without a cluster: RLModules of a checkpoint, asked for actions in this process.

    actor = create_ray_actor(RayPolicyConfig(checkpoint_path="runs/my-run/1", algorithm="PPO", env_id="waterworld_v4"))
    action = actor.select_action(observation, agent="pursuer_0")

Neither Ray nor an environment is started. An action depends on the agent's own observation, the seed of its lane and
what the lane has seen, never on other lanes or on how many are asked at once.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from gymnasium.spaces import Box
from ray.rllib.core.rl_module.rl_module import RLModule

from mosaic_worker.errors import ConfigError, RequestError
from mosaic_worker.spaces import space_from_json
from ray_worker.checkpoints import FOLDERS, About, module_path, read_about
from ray_worker.decisions import Decider, only_mask
from ray_worker.environments import AGENT
from ray_worker.inference import Lane, Network, use_one_thread
from ray_worker.views import STATE, AgentView

__all__ = [
    "Player",
    "RandomActor",
    "RayPolicyActor",
    "RayPolicyConfig",
    "RayPolicyController",
    "create_ray_actor",
]

RANDOM = "random"
"""Stands for a checkpoint where an agent acts at random."""

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class RayPolicyConfig:
    """Which checkpoint to load, and how it acts."""

    checkpoint_path: str | os.PathLike[str]
    """A checkpoint, or the folder of a run, of which the newest is taken."""
    algorithm: str = ""
    """If given, it has to be the checkpoint's."""
    env_id: str = ""
    """If given, it has to be the checkpoint's."""
    deterministic: bool = True
    """The likeliest action; else actions are sampled."""
    seed: int = 0
    """Of sampled actions, until `begin_episode` gives a lane its own."""


class Player(Protocol):
    """What evaluation needs of a policy, of one checkpoint or of several."""

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents that it can act for."""

    def begin_episode(self, seed: int, agent: str | None = None, lane: int = 0) -> None:
        """Begin an episode of one agent, or of all."""

    def act(self, agent: str, seen: Sequence[Any], lanes: Sequence[int]) -> list[Any]:
        """Choose an action for each lane by what the agent sees there, converted by its view."""


class RayPolicyActor:
    """Acts for every agent of one checkpoint."""

    def __init__(
        self,
        about: About,
        load: Callable[[str], Any],
        *,
        deterministic: bool = True,
        seed: int = 0,
        path: Path | None = None,
    ) -> None:
        """Take what a checkpoint says of itself, and a function that loads a module by its id."""
        self.about = about
        self.path = path
        self.deterministic = deterministic
        self._seed = seed
        self._load = load
        self._networks: dict[str, tuple[Network, Decider]] = {}
        self._views: dict[str, AgentView] = {}
        self._lanes: dict[tuple[str, int], Lane] = {}
        self.last: list[tuple[Array, Any]] = []
        """Outputs and masks of the last decision."""
        self._last_agent = ""

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents that this checkpoint was trained for."""
        return tuple(self.about.agents)

    @property
    def is_deterministic(self) -> bool:
        """Whether the same observation always gets the same action."""
        return self.deterministic or not all(self._network(agent)[1].can_sample for agent in self.agents)

    def name_of(self, agent: str | None) -> str:
        """The agent that is meant. A single-agent policy has only one, whatever it is called elsewhere."""
        if self.agents == (AGENT,):
            return AGENT
        if agent not in self.about.agents:
            raise RequestError(f"agent {agent!r} is none of {', '.join(self.agents)}")
        return agent

    def view_of(self, agent: str | None) -> AgentView:
        """How an agent's observations are converted."""
        name = self.name_of(agent)
        if name not in self._views:
            raw, actions, seen = (
                space_from_json(spaces[name])
                for spaces in (self.about.raw_spaces, self.about.action_spaces, self.about.observation_spaces)
            )
            state = getattr(seen, "spaces", {}).get(STATE)
            self._views[name] = AgentView(raw, actions, 0 if state is None else state.shape[0])
        return self._views[name]

    def begin_episode(self, seed: int, agent: str | None = None, lane: int = 0) -> None:
        """Begin an episode of one agent, or of all: sampled actions come from the seed, memories are cleared."""
        if agent is not None:
            self._lanes[self.name_of(agent), lane] = Lane(np.random.default_rng(seed))
            return
        for number, name in enumerate(self.agents):
            self._lanes[name, lane] = Lane(np.random.default_rng((seed, number)))

    def select_action(self, observation: Any, agent: str | None = None, action_mask: Any = None, lane: int = 0) -> Any:
        """Choose an action for an observation as the environment has it."""
        masks = None if action_mask is None else [action_mask]
        return self.select_actions([observation], agent, masks, [lane])[0]

    def select_actions(
        self,
        observations: Sequence[Any],
        agent: str | None = None,
        action_masks: Sequence[Any] | None = None,
        lanes: Sequence[int] | None = None,
    ) -> list[Any]:
        """Choose an action for the observation in each lane; equal to asking one by one."""
        view, count = self.view_of(agent), len(observations)
        masks = action_masks if action_masks is not None else [None] * count
        seen = [_see(view, observation, mask) for observation, mask in zip(observations, masks, strict=True)]
        return self._decide(self.name_of(agent), seen, range(count) if lanes is None else lanes, masks)

    def act(self, agent: str, seen: Sequence[Any], lanes: Sequence[int]) -> list[Any]:
        """Choose an action for each lane by what the agent sees there, converted by its view."""
        return self._decide(self.name_of(agent), seen, lanes, [None] * len(seen))

    def probabilities(self) -> list[Array] | None:
        """The probabilities of discrete actions in the last decision; None if there are none."""
        if not self.last:
            return None
        _, decider = self._network(self._last_agent)
        found = [decider.probabilities(output, mask) for output, mask in self.last]
        return None if found[0] is None else [each for each in found if each is not None]

    def _decide(self, agent: str, seen: Sequence[Any], lanes: Sequence[int], masks: Sequence[Any]) -> list[Any]:
        network, decider = self._network(agent)
        places = [self._lane(agent, lane) for lane in lanes]
        outputs = network.outputs(seen, places)
        given = [only_mask(each) if mask is None else mask for each, mask in zip(seen, masks, strict=True)]
        self.last, self._last_agent = list(zip(outputs, given, strict=True)), agent
        return [
            decider.decide(output, mask, None if self.deterministic else place.generator)
            for output, mask, place in zip(outputs, given, places, strict=True)
        ]

    def _lane(self, agent: str, lane: int) -> Lane:
        if (agent, lane) not in self._lanes:
            self._lanes[agent, lane] = Lane(np.random.default_rng((self._seed, self.agents.index(agent), lane)))
        return self._lanes[agent, lane]

    def _network(self, agent: str) -> tuple[Network, Decider]:
        name = self.about.agents[agent]
        if name not in self._networks:
            network = Network(self._load(name))
            actions = space_from_json(self.about.action_spaces[agent])
            self._networks[name] = network, Decider(network.module, actions, is_value=network.is_value)
        return self._networks[name]


class RandomActor:
    """Acts at random, for comparison; illegal actions are never chosen."""

    def __init__(self, actions: Mapping[str, Any], seed: int = 0) -> None:
        """Take the action spaces of the agents."""
        self._actions = actions
        self._seed = seed
        self._generators: dict[tuple[str, int], np.random.Generator] = {}

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents that it can act for."""
        return tuple(self._actions)

    def begin_episode(self, seed: int, agent: str | None = None, lane: int = 0) -> None:
        """Begin an episode of one agent, or of all."""
        for number, name in enumerate(self.agents):
            if agent in {None, name}:
                self._generators[name, lane] = np.random.default_rng((seed, number))

    def act(self, agent: str, seen: Sequence[Any], lanes: Sequence[int]) -> list[Any]:
        """Choose an action for each lane."""
        return [self._draw(agent, each, lane) for each, lane in zip(seen, lanes, strict=True)]

    def _draw(self, agent: str, seen: Any, lane: int) -> Any:
        space, generator = self._actions[agent], self._generators.get((agent, lane))
        if generator is None:
            generator = self._generators[agent, lane] = np.random.default_rng((self._seed, lane))
        mask = only_mask(seen)
        space.seed(int(generator.integers(2**31)))
        return space.sample(None if mask is None else mask.astype(np.int8))


class RayPolicyController:
    """Several policies in one environment: each agent has its own checkpoint, or acts at random."""

    def __init__(self, policies: Mapping[str, Any]) -> None:
        """Take an actor for each agent; see `from_checkpoints`."""
        self._policies = dict(policies)
        for agent, policy in self._policies.items():
            if agent not in policy.agents:
                raise ConfigError(f"agents.{agent}: its policy was trained for {', '.join(policy.agents)} only")

    @classmethod
    def from_checkpoints(
        cls, checkpoints: Mapping[str, str | os.PathLike[str]], *, deterministic: bool = True, seed: int = 0
    ) -> "RayPolicyController":
        """Load a checkpoint for each agent; a checkpoint that serves several agents is loaded once."""
        loaded = {
            path: create_ray_actor(RayPolicyConfig(path, deterministic=deterministic, seed=seed))
            for path in {os.fspath(path) for path in checkpoints.values()}
        }
        return cls({agent: loaded[os.fspath(path)] for agent, path in checkpoints.items()})

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents that have a policy."""
        return tuple(self._policies)

    def policy_of(self, agent: str) -> Any:
        """The policy of an agent."""
        if agent not in self._policies:
            raise RequestError(f"agent {agent!r} has no policy; there are {', '.join(self._policies)}")
        return self._policies[agent]

    def begin_episode(self, seed: int, agent: str | None = None, lane: int = 0) -> None:
        """Begin an episode of one agent, or of all."""
        for policy in {id(each): each for each in self._policies.values()}.values():
            if agent is None or self.policy_of(agent) is policy:
                policy.begin_episode(seed, agent, lane)

    def select_action(self, observation: Any, agent: str, action_mask: Any = None, lane: int = 0) -> Any:
        """Choose an agent's action for an observation as the environment has it."""
        return self.policy_of(agent).select_action(observation, agent, action_mask, lane)

    def act(self, agent: str, seen: Sequence[Any], lanes: Sequence[int]) -> list[Any]:
        """Choose an action for each lane by what the agent sees there, converted by its view."""
        found: list[Any] = self.policy_of(agent).act(agent, seen, lanes)
        return found


def create_ray_actor(config: RayPolicyConfig, field_name: str = "checkpoint_path") -> RayPolicyActor:
    """Load the policies of a checkpoint; ConfigError if it is another's or none."""
    path = FOLDERS.find(config.checkpoint_path, field_name).absolute()  # RLlib refuses a relative one
    about = read_about(path, field_name)
    problems = [
        f"{name}: {field_name} was trained {how} {found}, not {given}"
        for name, given, found, how in (
            ("algorithm", config.algorithm.upper(), about.algorithm, "by"),
            ("env_id", config.env_id, about.env_id, "on"),
        )
        if given and given != found
    ]
    if problems:
        raise ConfigError(problems)
    use_one_thread()

    def load(module_id: str) -> Any:
        try:
            return RLModule.from_checkpoint(module_path(path, module_id))
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise ConfigError(
                f"{field_name}: the RLModule {module_id!r} in {str(path)!r} is damaged: {reason}"
            ) from error

    actor = RayPolicyActor(about, load, deterministic=config.deterministic, seed=config.seed, path=path)
    for agent in actor.agents:
        actor.view_of(agent)
        actor._network(agent)  # noqa: SLF001 - what is damaged is refused now, not in the middle of a game
    return actor


def _see(view: AgentView, observation: Any, mask: Any) -> Any:
    """Convert an observation of the environment, whose mask comes with it or apart."""
    if view.has_mask and isinstance(observation, Mapping):
        mask = observation.get("action_mask") if mask is None else mask
        observation = observation.get("observation")
    if isinstance(view.inner, Box) and np.shape(observation) != view.inner.shape:
        raise RequestError(f"the observation has the shape {np.shape(observation)}, the policy takes {view.inner}")
    try:
        return view.see(observation, mask)
    except (TypeError, ValueError, KeyError, IndexError) as error:
        raise RequestError(f"the observation or its mask is not one of {view.raw}: {error}") from error
