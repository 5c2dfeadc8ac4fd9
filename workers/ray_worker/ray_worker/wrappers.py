"""How environments get into RLlib: PettingZoo's two APIs as its MultiAgentEnv, and Gymnasium's with converted views.

RLlib's own PettingZoo wrappers never end an episode in which some agents terminate and others are truncated.
"""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from ray.rllib.env.multi_agent_env import MultiAgentEnv

from ray_worker.views import AgentView, Array, View

__all__ = ["ParallelEnv", "SingleEnv", "TurnEnv"]

_ALL = "__all__"
Dicts = tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Any]]


class SingleEnv(gymnasium.ObservationWrapper[Any, Any, Any]):
    """An environment of Gymnasium whose observations are vectors or small images."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        """Wrap an environment."""
        super().__init__(env)
        self.view = AgentView(env.observation_space, env.action_space)
        self.observation_space = self.view.space

    def observation(self, observation: Any) -> Any:
        """Convert one observation."""
        return self.view(observation)


class _PettingZooEnv(MultiAgentEnv):  # type: ignore[misc]
    """What both APIs share: views, the global state, and how an episode ends."""

    def __init__(self, env: Any, *, with_state: bool = False) -> None:
        """Wrap an environment; `with_state` adds the global state to every agent's observation."""
        self.env = env
        self.metadata = dict(env.metadata)
        self.render_mode = getattr(env, "render_mode", None)
        self.possible_agents = list(env.possible_agents)
        self.agents = list(self.possible_agents)
        self.action_spaces = {agent: env.action_space(agent) for agent in self.agents}
        self.views = self._views(0)
        self.state_view: View | None = None
        if with_state:
            self.state_view = self._view_of_state()
            joint = sum(view.vector_size for view in self.views.values())
            self.views = self._views(int(np.prod(self.state_view.space.shape)) if self.state_view else joint)
        self.with_state = with_state
        self._state: Array | None = None
        self.observation_spaces = {agent: view.space for agent, view in self.views.items()}
        super().__init__()

    def render(self) -> Any:
        """Return a frame."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _note_state(self, seen: Callable[[str], Any]) -> None:
        """Remember the environment's own state, or else what all agents see; agents that left see zeros."""
        if not self.with_state:
            return
        if self.state_view is None:
            parts = []
            for agent, view in self.views.items():
                mine = seen(agent)
                parts.append(np.zeros(view.vector_size, np.float32) if mine is None else view.vector(mine))
            self._state = np.concatenate(parts)
            return
        try:
            self._state = self.state_view(self.env.state()).reshape(-1)
        except Exception:
            if self.env.agents and not self._is_ending():  # multiwalker has no state once its walkers fell.
                raise

    def _is_ending(self) -> bool:
        return False

    def _views(self, state_size: int) -> dict[str, AgentView]:
        return {
            agent: AgentView(self.env.observation_space(agent), self.action_spaces[agent], state_size)
            for agent in self.possible_agents
        }

    def _view_of_state(self) -> View | None:
        """The view of `state()`, if the environment has one that fits its space; some declare another shape."""
        space = getattr(self.env, "state_space", None)
        if not isinstance(space, Box):
            return None
        self.env.reset()
        try:
            return View(space) if np.asarray(self.env.state()).shape == space.shape else None
        except NotImplementedError:
            return None

    def _action(self, agent: str, action: Any) -> Any:
        """Give MPE a number of its own: it divides the action in place."""
        space = self.action_spaces[agent]
        return np.array(action, space.dtype) if space.shape else int(action)

    def _see(self, seen: dict[str, Any]) -> dict[str, Any]:
        return {agent: self.views[agent](observation, self._state) for agent, observation in seen.items()}

    def _result(
        self, seen: dict[str, Any], rewards: dict[str, Any], terminated: dict[str, Any], truncated: dict[str, Any]
    ) -> Dicts:
        """Say how a step ended.

        At the end of an episode, agents that were cut off are named by `__all__` alone: RLlib takes an episode whose
        agents are all named as terminated, and would then not bootstrap their values.
        """
        self.agents = list(self.env.agents)
        over = not self.agents
        cut = over and any(truncated[agent] and not terminated[agent] for agent in seen)
        ends = {agent: bool(terminated[agent]) for agent in seen}
        cuts = {agent: bool(truncated[agent]) and not over for agent in seen}
        gains = {agent: float(rewards[agent]) for agent in seen}
        return self._see(seen), gains, {**ends, _ALL: over and not cut}, {**cuts, _ALL: cut}, {}


class ParallelEnv(_PettingZooEnv):
    """PettingZoo's parallel API: all agents act at once."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Begin an episode."""
        seen, _ = self.env.reset(seed=seed, options=options)
        self.agents = list(self.env.agents)
        self._note_state(seen.get)
        return self._see(seen), {}

    def step(self, action_dict: dict[str, Any]) -> Dicts:
        """Let the agents act that are still there."""
        acting = {agent: self._action(agent, action_dict[agent]) for agent in self.env.agents}
        seen, rewards, terminated, truncated, _ = self.env.step(acting)
        self._note_state(seen.get)
        return self._result(seen, rewards, terminated, truncated)


class TurnEnv(_PettingZooEnv):
    """PettingZoo's AEC API: one agent acts at a time, and only that agent is given an observation."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        """Begin an episode."""
        self.env.reset(seed=seed, options=options)
        self.agents = list(self.env.agents)
        self._note_state(self._observe)
        agent = self.env.agent_selection
        return self._see({agent: self.env.observe(agent)}), {}

    def step(self, action_dict: dict[str, Any]) -> Dicts:
        """Let the agent act whose turn it is, and let those leave that are done."""
        agent = self.env.agent_selection
        self.env.step(self._action(agent, action_dict[agent]))
        self._note_state(self._observe)  # Before agents leave, so that the last state knows what they saw.
        seen: dict[str, Any] = {}
        rewards: dict[str, Any] = {}
        terminated: dict[str, Any] = {}
        truncated: dict[str, Any] = {}
        while self.env.agents:
            agent = self.env.agent_selection
            seen[agent], rewards[agent], terminated[agent], truncated[agent], _ = self.env.last()
            if not (terminated[agent] or truncated[agent]):
                break
            self.env.step(None)
        return self._result(seen, rewards, terminated, truncated)

    def _observe(self, agent: str) -> Any:
        return self.env.observe(agent) if agent in self.env.agents else None

    def _is_ending(self) -> bool:
        return all(self.env.terminations[agent] or self.env.truncations[agent] for agent in self.env.agents)
