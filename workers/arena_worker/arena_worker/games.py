"""Environments of three families behind one interface: who has to move, and what follows from the moves."""

import inspect
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from arena_worker.config import EnvironmentConfig
from arena_worker.labels import keys_of, labels_of
from arena_worker.sides import Sides
from mosaic_worker.config import near
from mosaic_worker.errors import ConfigError
from mosaic_worker.frames.fastlane import FastLane
from mosaic_worker.modules import import_user_module

__all__ = ["ONLY_AGENT", "Game", "Turn", "make_game"]

ONLY_AGENT = "agent"
_PACKAGES = ("pettingzoo.classic", "pettingzoo.butterfly", "pettingzoo.sisl", "mpe2", "pettingzoo.mpe")
_REGISTERED_BY = {"MiniGrid-": "minigrid", "BabyAI-": "minigrid", "ALE/": "ale_py"}
_MOST_KEYS = 40
_MOST_DOC = 8000
_MASK, _OBSERVATION = "action_mask", "observation"


class Turn(NamedTuple):
    """What an agent sees when it has to move; a mask has a 1 for each legal action."""

    observation: Any
    mask: Any


class Game(ABC):
    """One environment. `rewards` holds what each agent got since the last move."""

    agents: list[str]
    """Every agent that may take part, in the environment's own order."""
    observation_spaces: dict[str, Any]
    """Without the action mask, which travels beside the observation."""
    action_spaces: dict[str, Any]
    meanings: dict[str, list[str] | None]
    """The names of the discrete actions of each agent."""
    keys: dict[str, list[str | None]]
    """The keys with which a person plays them; a large space has none."""
    rewards: dict[str, float]
    sides: Sides
    """Who plays against whom."""
    episode: int | None = None
    """The episode that is played; None before the first."""
    busy_since: float | None = None
    """When the environment was called that has not returned yet."""
    ended: str | None
    """`terminated` or `truncated` when the episode is over."""

    def __init__(self, env: Any, config: EnvironmentConfig) -> None:
        """Use an environment that was made by a config."""
        self.env = env
        self._env_id = env_id = config.id
        self.sides = Sides(env_id, self.agents, competitive=config.competitive)
        self.ended = None
        self.rewards = {}
        self._seed = 0
        self._command = "reset"
        self.meanings = {agent: labels_of(env_id, env, self.action_spaces[agent], agent) for agent in self.agents}
        counts = {agent: int(getattr(space, "n", 0)) for agent, space in self.action_spaces.items()}
        self.keys = {
            agent: keys_of(env_id, self.meanings[agent], count)
            for agent, count in counts.items()
            if 0 < count <= _MOST_KEYS
        }

    def about(self) -> dict[str, Any]:
        """Say what is played and by whom, for policies that can read."""
        inner = self.env.unwrapped
        doc = type(inner).__doc__ or getattr(sys.modules.get(type(inner).__module__), "__doc__", None)
        about = {"id": self._env_id, "agents": self.agents, "doc": inspect.cleandoc(doc or "")[:_MOST_DOC]}
        drawn = getattr(inner, "desc", None)  # the map of toy text: an array of letters
        if isinstance(drawn, np.ndarray) and drawn.dtype.kind == "S":
            about["map"] = [b"".join(row).decode() for row in drawn]
        return about

    @property
    def doing(self) -> str:
        """What the environment was called for last."""
        which = "" if self.episode is None else f" in episode {self.episode}"
        return f"{self._env_id}, {self._command}{which} (seed {self._seed}),"

    def reset(self, seed: int) -> dict[str, Turn]:
        """Begin an episode; return who has to move."""
        self._seed, self._command, self.busy_since = seed, "reset", time.monotonic()
        try:
            return self._reset(seed)
        finally:
            self.busy_since = None

    def move(self, actions: Mapping[str, Any]) -> dict[str, Turn]:
        """Carry out the moves of all who had to; return who has to move next."""
        self._command, self.busy_since = "step", time.monotonic()
        try:
            return self._move(actions)
        finally:
            self.busy_since = None

    @abstractmethod
    def _reset(self, seed: int) -> dict[str, Turn]:
        """Reset the environment."""

    @abstractmethod
    def _move(self, actions: Mapping[str, Any]) -> dict[str, Turn]:
        """Step the environment."""

    def late_rewards(self) -> dict[str, float]:
        """Return rewards that agents have not got yet because the episode was cut off."""
        return {}

    def render(self) -> Any:
        """Return a picture, or None."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


class SingleGame(Game):
    """A Gymnasium environment."""

    def __init__(self, env: Any, config: EnvironmentConfig) -> None:
        self.agents = [ONLY_AGENT]
        self.observation_spaces = {ONLY_AGENT: env.observation_space}
        self.action_spaces = {ONLY_AGENT: env.action_space}
        super().__init__(env, config)

    def _reset(self, seed: int) -> dict[str, Turn]:
        self.ended, self.rewards = None, {}
        observation, info = self.env.reset(seed=seed)
        return {ONLY_AGENT: Turn(observation, info.get(_MASK))}

    def _move(self, actions: Mapping[str, Any]) -> dict[str, Turn]:
        observation, reward, terminated, truncated, info = self.env.step(actions[ONLY_AGENT])
        self.rewards = {ONLY_AGENT: float(reward)}
        if terminated or truncated:
            self.ended = "terminated" if terminated else "truncated"
            return {}
        return {ONLY_AGENT: Turn(observation, info.get(_MASK))}


class ParallelGame(Game):
    """A PettingZoo environment in which all agents move at once."""

    def __init__(self, env: Any, config: EnvironmentConfig) -> None:
        _describe(self, env)
        super().__init__(env, config)

    def _reset(self, seed: int) -> dict[str, Turn]:
        self.ended, self.rewards = None, {}
        observations, infos = self.env.reset(seed=seed)
        return {agent: _turn(observations[agent], infos.get(agent) or {}) for agent in self.env.agents}

    def _move(self, actions: Mapping[str, Any]) -> dict[str, Turn]:
        observations, rewards, terminated, truncated, infos = self.env.step(dict(actions))
        self.rewards = {agent: float(reward) for agent, reward in rewards.items()}
        if not self.env.agents:
            self.ended = "terminated" if any(terminated.values()) else "truncated"
            return {}
        live = [agent for agent in self.env.agents if not (terminated[agent] or truncated[agent])]
        return {agent: _turn(observations[agent], infos.get(agent) or {}) for agent in live}


class TurnGame(Game):
    """A PettingZoo environment in which agents move in turn."""

    def __init__(self, env: Any, config: EnvironmentConfig) -> None:
        _describe(self, env)
        super().__init__(env, config)

    def _reset(self, seed: int) -> dict[str, Turn]:
        self.ended, self.rewards = None, {}
        self._truncated = False
        self.env.reset(seed=seed)
        return self._next()

    def _move(self, actions: Mapping[str, Any]) -> dict[str, Turn]:
        self.rewards = {}
        self.env.step(actions[self.env.agent_selection])
        return self._next()

    def _next(self) -> dict[str, Turn]:
        """Step over agents that are out of the game; what they got last is theirs."""
        while self.env.agents:
            agent = self.env.agent_selection
            observation, reward, terminated, truncated, info = self.env.last()
            self.rewards[agent] = self.rewards.get(agent, 0.0) + float(reward)
            if not (terminated or truncated):
                return {agent: _turn(observation, info)}
            self._truncated = self._truncated or (truncated and not terminated)
            self.env.step(None)
        self.ended = "truncated" if self._truncated else "terminated"
        return {}

    def late_rewards(self) -> dict[str, float]:
        current = self.env.agent_selection if self.env.agents else None
        waiting = getattr(self.env.unwrapped, "_cumulative_rewards", {})
        return {agent: float(reward) for agent, reward in waiting.items() if agent != current and reward}


def _describe(game: Game, env: Any) -> None:
    game.agents = [str(agent) for agent in env.possible_agents]
    game.observation_spaces = {agent: _without_mask(env.observation_space(agent)) for agent in env.possible_agents}
    game.action_spaces = {agent: env.action_space(agent) for agent in env.possible_agents}


def _without_mask(space: Any) -> Any:
    parts = getattr(space, "spaces", None)
    if isinstance(parts, dict) and set(parts) == {_OBSERVATION, _MASK}:
        return parts[_OBSERVATION]
    return space


def _turn(observation: Any, info: Mapping[str, Any]) -> Turn:
    if isinstance(observation, dict) and observation.keys() == {_OBSERVATION, _MASK}:
        return Turn(observation[_OBSERVATION], observation[_MASK])
    return Turn(observation, info.get(_MASK))


def make_game(config: EnvironmentConfig, lane: FastLane | None = None, index: int = 0, *, render: bool = False) -> Game:
    """Make an environment, with its frames published by `lane`; ConfigError says why it cannot be made."""
    for module in config.imports:
        import_user_module(module)
    render = render or (lane is not None and lane.wants_frames)
    options: list[dict[str, Any]] = [{}]
    if render and "render_mode" not in config.kwargs:
        options = [{"render_mode": "rgb_array"}, {}]  # one that cannot render is played without pictures
    make = _single if config.family == "gymnasium" else _several
    for more in options:
        try:
            env = make(config, {**config.kwargs, **more})
            break
        except ConfigError:
            raise
        except Exception as error:
            problem = (
                f"environment: {config.id!r} with {config.kwargs!r} cannot be made: {type(error).__name__}: {error}"
            )
    else:
        raise ConfigError(problem)
    if lane is not None:
        env = lane.wrap(env, index)
    kinds: dict[str, Callable[[Any, EnvironmentConfig], Game]] = {
        "gymnasium": SingleGame,
        "aec": TurnGame,
        "parallel": ParallelGame,
    }
    return kinds[config.family](env, config)


def _single(config: EnvironmentConfig, options: dict[str, Any]) -> Any:
    for prefix, module in _REGISTERED_BY.items():
        if config.id.startswith(prefix):
            registering = import_module(module)
            if module == "ale_py" and hasattr(gymnasium, "register_envs"):
                gymnasium.register_envs(registering)
    module, _, name = config.id.rpartition(":")
    if module:
        import_user_module(module)
    if name not in gymnasium.registry:
        known = list(gymnasium.registry)
        raise ConfigError(
            f"environment.id: {config.id!r} is none of the {len(known)} that are registered{near(name, known)}"
        )
    return gymnasium.make(name, disable_env_checker=True, **options)


def _several(config: EnvironmentConfig, options: dict[str, Any]) -> Any:
    name = config.id.replace("/", ".")
    tried = [name] if "." in name else [f"{package}.{name}" for package in _PACKAGES]
    for path in tried:
        try:
            module = import_module(path)
        except ModuleNotFoundError as error:
            if error.name is not None and (path == error.name or path.startswith(f"{error.name}.")):
                continue  # not there; any other module that is missing is a fault of this one
            raise
        maker = getattr(module, "parallel_env" if config.family == "parallel" else "env", None)
        if maker is None:
            raise ConfigError(f"environment.family: {path} has no {config.family} form")
        return maker(**options)
    raise ConfigError(f"environment.id: there is no {config.id!r}; tried {', '.join(tried)}")
