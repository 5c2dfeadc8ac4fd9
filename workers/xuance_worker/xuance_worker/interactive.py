"""Interactive mode: a policy acts, one request at a time, in its own environment or in another process's."""

from typing import Any

import numpy as np

from mosaic_worker.errors import RequestError
from mosaic_worker.interactive import InteractiveWorker, StepResult
from mosaic_worker.spaces import space_from_json, value_from_json, values_from_json
from xuance_worker.checkpoints import FOLDERS
from xuance_worker.evaluation import make_env
from xuance_worker.policies import load_policy, untrained_policy
from xuance_worker.task import task_of
from xuance_worker.training import Context, make_lane, use_threads
from xuance_worker.wrappers import begin_episode

__all__ = ["XuanCeInteractive"]


class XuanCeInteractive(InteractiveWorker):
    """Answers with the policy of `policy_path`, or without one with a policy that has not learned yet."""

    def __init__(self, context: Context) -> None:
        """Load the policy; the environment is made by the first reset."""
        use_threads()
        config = context.config
        self._context = context
        self._seed = config.seed or 0
        if config.policy_path:
            path = FOLDERS.find(config.policy_path, "policy_path")
            self._policy, _ = load_policy(path, "policy_path", deterministic=config.deterministic)
        else:
            self._policy = untrained_policy(task_of(config), self._seed, deterministic=config.deterministic)
        self._env: Any = None
        self._seen: Any = None
        self._is_running = False
        self._joined: set[str | None] = set()

    def reset(self, seed: int | None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; the same seed gives the same episode."""
        if self._env is None:
            self._env = make_env(self._policy.task, make_lane(self._context), self._seed)
        self._seen = begin_episode(self._env, seed)
        self._policy.begin_episode(seed)
        self._is_running = True
        return self._seen, {}

    def step(self, action: Any) -> StepResult:
        """Take the given action (of all agents, by name) or the policy's own."""
        if self._env is None or not self._is_running:
            raise RequestError("no episode is running: send reset first")
        taken = self._policy.select_together(self._seen) if action is None else self._given(action)
        self._seen, reward, terminated, truncated, _ = self._env.step(taken)
        over = all(terminated.values()) if isinstance(terminated, dict) else bool(terminated)
        self._is_running = not (over or truncated)
        return StepResult(taken, self._seen, reward, over, bool(truncated), {})

    def init_agent(self, observation_space: Any, action_space: Any, seed: int | None, agent: str | None) -> None:
        """Let an agent join an episode elsewhere; sent again, it begins the next episode."""
        name, spaces = self._name(agent), self._policy.task.spaces
        pairs = [(spaces.actions[name], space_from_json(action_space))]
        if observation_space is not None:
            pairs.append((spaces.observations[name], space_from_json(observation_space)))
        for mine, given in pairs:
            if _shape(mine) != _shape(given):
                raise RequestError(f"the policy was made for {mine}, not for {given}")
        self._policy.begin_alone(self._seed if seed is None else seed, agent or "")
        self._joined.add(agent)

    def begin_episode(self, agent: str | None, seed: int, episode: int, lane: int) -> None:
        """Clear the recurrent state of an agent in a lane, and seed its sampled actions."""
        self._require_joined(agent)
        self._policy.begin_alone(seed, agent or "", lane)

    def select_actions(self, agent: str | None, observations: Any, lanes: list[int], action_masks: Any) -> Any:
        """Choose one agent's action in each lane: what XuanCe chooses for as many observations in one call."""
        self._require_joined(agent)
        if action_masks is not None and not np.all(action_masks):
            raise RequestError("the policy was trained without action masks and cannot follow one")
        seen = values_from_json(self._policy.task.spaces.observations[self._name(agent)], observations)
        return self._policy.select_alone(list(seen), agent or "", lanes)

    def close(self) -> None:
        """Close the environment."""
        if self._env is not None:
            self._env.close()

    def _require_joined(self, agent: str | None) -> None:
        if agent not in self._joined:
            raise RequestError(f"agent {agent!r} has not joined: send init_agent first")

    def _name(self, agent: str | None) -> str:
        """The agent whose spaces are meant. A single-agent policy has only one, whatever it is called elsewhere."""
        agents = self._policy.task.spaces.agents
        if not agents:
            return ""
        if agent not in agents:
            raise RequestError(f"agent {agent!r} is none of {', '.join(agents)}")
        return agent

    def _given(self, action: Any) -> Any:
        actions = self._policy.task.spaces.actions
        if not self._policy.task.spaces.agents:
            return _checked(actions[""], action)
        if not isinstance(action, dict) or action.keys() != actions.keys():
            raise RequestError(f"give one action for each of {', '.join(actions)}")
        return {name: _checked(actions[name], each) for name, each in action.items()}


def _checked(space: Any, action: Any) -> Any:
    value = value_from_json(space, action)
    if not space.contains(value):
        raise RequestError(f"action {action!r} is not in {space}")
    return value


def _shape(space: Any) -> tuple[Any, ...]:
    """What has to agree: kind, shape and number of actions. Bounds differ between versions of an environment."""
    return type(space).__name__, space.shape, getattr(space, "n", None)
