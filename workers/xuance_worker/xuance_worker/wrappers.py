"""How environments get into XuanCe: its own wrappers with two faults mended from outside, and one for PettingZoo.

XuanCe makes environments by name from two registries. `register` puts our classes there, in this process only; no file
of XuanCe is changed.
"""

import importlib
import inspect
import itertools
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import cv2
import gymnasium
import numpy as np
from gymnasium.spaces import Box
from xuance.environment import RawMultiAgentEnv
from xuance.environment.multi_agent_env import REGISTRY_MULTI_AGENT_ENV
from xuance.environment.multi_agent_env.mpe import MPE_Env
from xuance.environment.single_agent_env import REGISTRY_ENV
from xuance.environment.single_agent_env.gym import Gym_Env

from mosaic_worker.frames.fastlane import FastLane

__all__ = ["begin_episode", "make_raw", "register", "wrapper_of"]

_IMAGE_SIDE = 32
"""Images become grey squares of so many pixels a side: XuanCe's multi-agent networks take vectors."""
_SMALL_IMAGE = 16
"""An array with sides up to this, such as pursuit's 7 x 7 map, is not an image for people; it is kept as it is."""
_MAX_CYCLES = 500
"""The length of episodes where PettingZoo does not say its default, which is this one."""
_IMAGE_DIMENSIONS = 3


class SeededMPE(MPE_Env):  # type: ignore[misc]
    """XuanCe's MPE wrapper, with discrete actions as plain numbers and episodes that can be seeded.

    MPE divides the action in place. XuanCe passes arrays that it stores afterwards, so that it would learn from wrong
    actions.
    """

    next_seed: int | None = None

    def reset(self) -> Any:
        """Begin an episode, with `next_seed` if there is one."""
        seed, self.next_seed = self.next_seed, None
        observations, infos = self.env.reset(seed=seed)
        self.individual_episode_reward = dict.fromkeys(self.agents, 0.0)
        self._episode_step = 0
        return observations, {"infos": infos, "individual_episode_rewards": self.individual_episode_reward}

    def step(self, actions: dict[str, Any]) -> Any:
        """Take a step."""
        if self.continuous_actions:
            return super().step({agent: np.array(action) for agent, action in actions.items()})
        return super().step({agent: int(action) for agent, action in actions.items()})


class PettingZooEnv(RawMultiAgentEnv):  # type: ignore[misc]
    """Any parallel environment of PettingZoo: observations become vectors, and agents that left see zeros."""

    next_seed: int | None = None

    def __init__(self, config: Namespace) -> None:
        """Make the environment that the settings name."""
        super().__init__()
        scenario = importlib.import_module(f"pettingzoo.{config.env_name}.{config.env_id}")
        cycles = _max_cycles(scenario)
        self.render_mode = config.render_mode
        self.env = scenario.parallel_env(max_cycles=cycles, render_mode=config.render_mode)
        self.env.reset(seed=config.env_seed)
        self.metadata = self.env.metadata
        self.agents = list(self.env.possible_agents)
        self.num_agents = len(self.agents)
        self.action_space = {agent: self.env.action_space(agent) for agent in self.agents}
        sizes = {agent: self._vector(np.zeros(self.env.observation_space(agent).shape)).size for agent in self.agents}
        self.observation_space = {agent: Box(-np.inf, np.inf, (size,), np.float32) for agent, size in sizes.items()}
        self.state_space = Box(-np.inf, np.inf, (sum(sizes.values()),), np.float32)
        self.max_episode_steps = cycles
        self._seen: dict[str, np.ndarray[Any, Any]] = {}

    def reset(self) -> Any:
        """Begin an episode, with `next_seed` if there is one."""
        seed, self.next_seed = self.next_seed, None
        observations, infos = self.env.reset(seed=seed)
        return self._see(observations), {"infos": infos}

    def step(self, actions: dict[str, Any]) -> Any:
        """Let the agents act that are still there."""
        acting = {agent: self._action(agent, actions[agent]) for agent in self.env.agents}
        observations, rewards, terminations, truncations, infos = self.env.step(acting)
        is_over = not self.env.agents
        ended = {agent: agent not in self.env.agents and not truncations.get(agent, False) for agent in self.agents}
        return (
            self._see(observations),
            {agent: float(rewards.get(agent, 0.0)) for agent in self.agents},
            ended,
            is_over and not all(terminations.values()),
            {"infos": infos},
        )

    def state(self) -> Any:
        """Everything that the agents see together."""
        return np.concatenate([self._seen[agent] for agent in self.agents])

    def agent_mask(self) -> dict[str, bool]:
        """Which agents are still there."""
        return {agent: agent in self.env.agents for agent in self.agents}

    def avail_actions(self) -> Any:
        """All discrete actions are allowed; continuous ones have no mask."""
        spaces = self.action_space
        if any(isinstance(space, Box) for space in spaces.values()):
            return None
        return {agent: np.ones(space.n, np.bool_) for agent, space in spaces.items()}

    def render(self, *_: Any) -> Any:
        """Return a frame."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _see(self, observations: dict[str, Any]) -> dict[str, Any]:
        nothing = {agent: np.zeros(space.shape, np.float32) for agent, space in self.observation_space.items()}
        seen = {agent: self._vector(observation) for agent, observation in observations.items()}
        self._seen = {**nothing, **seen}
        return self._seen

    def _action(self, agent: str, action: Any) -> Any:
        space = self.action_space[agent]
        if not isinstance(space, Box):
            return int(action)
        return np.clip(np.asarray(action, space.dtype).reshape(space.shape), space.low, space.high)

    @staticmethod
    def _vector(observation: Any) -> np.ndarray[Any, Any]:
        array = np.asarray(observation, np.float32)
        if array.ndim == _IMAGE_DIMENSIONS and min(array.shape[:2]) > _SMALL_IMAGE:
            size = (_IMAGE_SIDE, _IMAGE_SIDE)
            array = cv2.resize(array.mean(axis=-1), size, interpolation=cv2.INTER_AREA) / np.float32(255)
        return array.reshape(-1)


class SeededGym(Gym_Env):  # type: ignore[misc]
    """XuanCe's Gymnasium wrapper, with episodes that can be seeded."""

    next_seed: int | None = None

    def reset(self) -> Any:
        """Begin an episode, with `next_seed` if there is one."""
        seed, self.next_seed = self.next_seed, None
        observation, info = self.env.reset(seed=seed)
        self._episode_step, self._episode_score = 0, 0.0
        return observation, {**info, "episode_step": 0}


class MiniGrid(gymnasium.Wrapper):  # type: ignore[misc, type-arg]
    """MiniGrid's view as a vector. XuanCe's own wrapper does not run with this version of Gymnasium."""

    next_seed: int | None = None

    def __init__(self, config: Namespace) -> None:
        """Make the environment that the settings name."""
        from minigrid.wrappers import ImgObsWrapper  # noqa: PLC0415 - other runs do not need it

        view = ImgObsWrapper(gymnasium.make(config.env_id, render_mode=config.render_mode))
        super().__init__(gymnasium.wrappers.FlattenObservation(view))
        self.env.reset(seed=config.env_seed)
        self.max_episode_steps = self.env.unwrapped.max_steps

    def reset(self, **_: Any) -> Any:
        """Begin an episode, with `next_seed` if there is one."""
        seed, self.next_seed = self.next_seed, None
        return self.env.reset(seed=seed)

    def render(self, *_: Any) -> Any:
        """Return a frame."""
        return self.env.render()


_CLASSES: dict[str, Any] = {
    "mpe": SeededMPE,
    "sisl": PettingZooEnv,
    "butterfly": PettingZooEnv,
    "Classic Control": SeededGym,
    "Box2D": SeededGym,
    "MuJoCo": SeededGym,
    "MiniGrid": MiniGrid,
}


def wrapper_of(name: str) -> Callable[[Namespace], Any]:
    """Return the class that makes the environments of a name."""
    found = _CLASSES.get(name) or REGISTRY_ENV.get(name)
    if not callable(found):
        raise ImportError(str(found))  # noqa: TRY004 - XuanCe keeps the text of the ImportError instead of the class
    return found


def make_raw(
    wrapper: Callable[[Namespace], Any], config: Namespace, lane: FastLane | None = None, index: int = 0
) -> Any:
    """Make one environment with seeded actions, and show its frames if the run wants them."""
    raw = wrapper(config)
    spaces = raw.action_space if isinstance(raw.action_space, dict) else {"": raw.action_space}
    for number, space in enumerate(spaces.values()):
        space.seed(config.env_seed * len(spaces) + number)
    if lane is not None:
        raw.env = lane.wrap(raw.env, index)
    return raw


@contextmanager
def register(name: str, lane: FastLane) -> Iterator[None]:
    """Let XuanCe make the environments of a name as we do, for as long as the block lasts."""
    registry = REGISTRY_MULTI_AGENT_ENV if _is_multi(name) else REGISTRY_ENV
    before, wrapper, numbers = registry.get(name), wrapper_of(name), itertools.count()
    registry[name] = lambda config: make_raw(wrapper, config, lane, next(numbers))
    try:
        yield
    finally:
        if before is None:
            del registry[name]
        else:
            registry[name] = before


def _is_multi(name: str) -> bool:
    """Whether environments of a name have several agents."""
    found = _CLASSES.get(name)
    return found is not None and issubclass(found, RawMultiAgentEnv)


def begin_episode(env: Any, seed: int | None) -> Any:
    """Reset one of XuanCe's wrapped environments; return the observation or observations."""
    raw = env.env
    if hasattr(raw, "next_seed"):
        raw.next_seed = seed
    elif seed is not None:
        raw.env.reset(seed=seed)  # Atari: XuanCe's reset takes no seed and continues from this one.
    observation, _ = env.reset()
    return observation


def _max_cycles(scenario: Any) -> int:
    raw = getattr(scenario, "raw_env", None)
    parameter = inspect.signature(raw).parameters.get("max_cycles") if raw is not None else None
    return parameter.default if parameter is not None and isinstance(parameter.default, int) else _MAX_CYCLES
