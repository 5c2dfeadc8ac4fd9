"""Interactive mode: a trained model acts, one request at a time, in its own environment or in another."""

import sys
from typing import Any

import gymnasium
import numpy as np

from cleanrl_worker.algorithms.plan import use_threads
from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.environments import ImageOf, fit_to_agent, make, make_lane
from cleanrl_worker.evaluation import UNSAVED
from cleanrl_worker.policies import OurPolicy, Policy, load_policy
from mosaic_worker.arrays import unstack
from mosaic_worker.context import RunContext
from mosaic_worker.errors import RequestError
from mosaic_worker.interactive import InteractiveWorker, StepResult
from mosaic_worker.spaces import space_from_json, value_from_json, values_from_json

__all__ = ["CleanRLInteractive"]


class CleanRLInteractive(InteractiveWorker):
    """Answers requests with the model of `extras.policy_path`, or else with an untrained agent."""

    def __init__(self, context: RunContext[CleanRLWorkerConfig]) -> None:
        """Load the model, if there is one; the environment is made by the first reset."""
        use_threads()
        self._context = context
        self._config = context.config
        self._model = load_policy(context.config) if context.config.extras.policy_path else None
        self._policy: Policy | None = None
        self._env: gymnasium.Env[Any, Any] | None = None
        self._view: Any = None
        self._mask: Any = None
        self._generator = np.random.default_rng(context.config.seed)
        self._running = False
        self._agents: dict[str | None, _Guest] = {}
        self._decided: Policy | None = None

    def reset(self, seed: int | None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; the same seed gives the same episode."""
        if self._env is None:
            self._policy = self._model or self._untrained()
            if episodes := self._policy.warm_up(self._context.stop.check):
                print(UNSAVED.format(algo=self._config.algo, episodes=episodes), file=sys.stderr)
            self._env, _ = self._policy.make_env(make_lane(self._context, ""), 0)
        if seed is not None:
            self._generator = np.random.default_rng(seed)
        self._view, info = self._env.reset(seed=seed)
        self._mask, self._running = info.get("action_mask"), True
        return self._view, info

    def step(self, action: Any) -> StepResult:
        """Take the given action, or the model's own."""
        if self._env is None or self._policy is None or not self._running:
            raise RequestError("no episode is running: send reset first")
        if action is None:
            masks = None if self._mask is None else [self._mask]
            taken = self._policy.act([self._view], self._generators(self._generator), masks)[0]
        else:
            taken = value_from_json(self._env.action_space, action)
            if not self._env.action_space.contains(taken):
                raise RequestError(f"action {action!r} is not in {self._env.action_space}")
        self._view, reward, terminated, truncated, info = self._env.step(taken)
        self._mask, self._running = info.get("action_mask"), not (terminated or truncated)
        return StepResult(taken, self._view, reward, terminated, truncated, info)

    def init_agent(self, observation_space: Any, action_space: Any, seed: int | None, agent: str | None) -> None:
        """Prepare the model for an outside environment, if it is one that it can act in."""
        if observation_space is None:
            raise RequestError("init_agent needs observation_space: a model has to know what it will see")
        spaces = space_from_json(observation_space), space_from_json(action_space)
        self._agents[agent] = _Guest(self._model, *spaces, seed if seed is not None else self._config.seed or 0)

    def begin_episode(self, agent: str | None, seed: int, episode: int, lane: int) -> None:
        """Seed the samples of a lane; our networks have no memory."""
        self._guest(agent).generators[lane] = np.random.default_rng(seed)

    def select_actions(self, agent: str | None, observations: Any, lanes: list[int], action_masks: Any) -> Any:
        """Choose an action in each lane, all in one batch."""
        guest = self._guest(agent)
        generators = None if self._config.extras.deterministic else [guest.generators[lane] for lane in lanes]
        self._decided = guest.policy
        return guest.policy.act(guest.views_of(observations, len(lanes)), generators, action_masks)

    def probabilities(self) -> Any:
        """Return those of the last batch."""
        return self._decided.probabilities() if self._decided is not None else None

    def _guest(self, agent: str | None) -> "_Guest":
        if agent not in self._agents:
            raise RequestError(f"agent {agent!r} is not known: send init_agent first")
        return self._agents[agent]

    def close(self) -> None:
        """Close the environment."""
        if self._env is not None:
            self._env.close()

    def _generators(self, generator: np.random.Generator) -> list[np.random.Generator] | None:
        return None if self._config.extras.deterministic else [generator]

    def _untrained(self) -> OurPolicy:
        env_id = self._config.env_id
        if not env_id:
            raise RequestError("there is no environment: give env_id or extras.policy_path in the config")
        env, kind = fit_to_agent(make(env_id, render=False), env_id)
        env.close()
        return OurPolicy.untrained(env_id, env.observation_space, env.action_space, kind, self._config.seed or 0)


class _Guest:
    """The model in an environment that is elsewhere."""

    def __init__(self, policy: Policy | None, observation_space: Any, action_space: Any, seed: int) -> None:
        """Use the model, or if there is none an untrained agent, with what these spaces describe."""
        self._space = observation_space
        self.generators = {0: np.random.default_rng(seed)}
        self._env: gymnasium.Env[Any, Any] = _Elsewhere(observation_space, action_space)
        if policy is None or isinstance(policy, OurPolicy):
            self._env, kind = fit_to_agent(self._env, "the outside environment")
            fitted = self._env.observation_space, self._env.action_space
            policy = policy or OurPolicy.untrained("", *fitted, kind, seed)
            policy.require_same(*fitted, "the outside environment")
        elif policy.normalizes:
            raise RequestError("the model takes observations that its own environment normalises: use reset and step")
        else:
            policy.require_same(observation_space, action_space, "the outside environment")
        self.policy = policy

        self._wrappers: list[Any] = []
        env = self._env
        while isinstance(env, gymnasium.ObservationWrapper):
            self._wrappers.insert(0, env)
            env = env.env

    def views_of(self, observations: Any, count: int) -> Any:
        """Bring the joined observations of several lanes into the form that the model takes."""
        views = values_from_json(self._space, observations)
        wrappers = self._wrappers
        if wrappers and isinstance(wrappers[0], ImageOf):  # which needs no loop over lanes
            views, wrappers = views["image"], wrappers[1:]
        if not wrappers:
            return views
        return [self._wrapped(unstack(views, row), wrappers) for row in range(count)]

    @staticmethod
    def _wrapped(view: Any, wrappers: list[Any]) -> Any:
        for wrapper in wrappers:
            view = wrapper.observation(view)
        return view


class _Elsewhere(gymnasium.Env[Any, Any]):
    """Stands for an environment of which only the spaces are known."""

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.observation_space = observation_space
        self.action_space = action_space
