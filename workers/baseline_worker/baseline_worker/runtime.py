"""Plays episodes, in a run or one request at a time in interactive mode."""

import contextlib
import os
import platform
from collections import deque
from statistics import fmean
from typing import Any

import gymnasium

from baseline_worker.agents import Agent, make_agent
from baseline_worker.config import BaselineConfig
from mosaic_worker.context import RunContext
from mosaic_worker.errors import ConfigError, RequestError
from mosaic_worker.frames.fastlane import FOLDER, FastLane
from mosaic_worker.interactive import InteractiveWorker, StepResult
from mosaic_worker.meanings import action_meanings
from mosaic_worker.spaces import space_from_json, value_from_json

__all__ = ["BaselineInteractive", "run"]

_WINDOW = 10
"""Episodes between two reports of scalars, and over which the recent mean is taken."""


def make_env(config: BaselineConfig, *, render: bool = False) -> gymnasium.Env[Any, Any]:
    """Make the environment, with `render` one that can render if possible; ConfigError if it fails."""
    if render and "render_mode" not in config.env_kwargs:
        # One that cannot render is played without frames, and the lane logs it.
        with contextlib.suppress(Exception):
            return gymnasium.make(config.env_id, **config.env_kwargs, render_mode="rgb_array")
    try:
        return gymnasium.make(config.env_id, **config.env_kwargs)
    except Exception as error:
        given = f"env_kwargs: {config.env_kwargs!r}"
        raise ConfigError(f"{given}: {config.env_id} cannot be made: {type(error).__name__}: {error}") from error


def make_lane(context: RunContext[BaselineConfig]) -> FastLane:
    """Make the FastLane of the run."""
    config = context.config
    return FastLane(
        config.fastlane_settings(os.environ),
        os.environ.get(FOLDER),
        record=config.record_settings(os.environ),
        run_dir=context.run_dir,
        emitter=context.emitter,
    )


def run(context: RunContext[BaselineConfig]) -> None:
    """Play the episodes that the config asks for and report them."""
    config, emitter, stop = context.config, context.emitter, context.stop
    lane = make_lane(context)
    env = lane.wrap(make_env(config, render=lane.wants_frames))
    try:
        meanings = action_meanings(env)
        agent = make_agent(config.agent, env.action_space, None, meanings)
        emitter.run_started(
            config.run_id,
            context.metadata.name,
            config=config.model_dump(mode="json"),
            env_id=config.env_id,
            seed=config.seed,
            total_episodes=config.episodes,
            total_steps=config.max_steps,
            task=f"{config.agent} agent on {config.env_id}",
            versions={"python": platform.python_version(), "gymnasium": gymnasium.__version__},
        )
        step, episodes, total, recent = 0, 0, 0.0, deque[float](maxlen=_WINDOW)
        for episode in range(config.episodes):
            seed = None if config.seed is None else config.seed + episode
            if seed is not None:  # an episode depends on its seed alone, so that a run can be split into shards
                agent = make_agent(config.agent, env.action_space, seed, meanings)
            observation, info = env.reset(seed=seed)
            episode_return, start, over = 0.0, step, False
            while not over and step != config.max_steps:
                stop.check()
                action = agent.act(observation, info.get("action_mask"))
                observation, reward, terminated, truncated, info = env.step(action)
                step += 1
                episode_return += float(reward)
                over = terminated or truncated
                if config.step_events:
                    emitter.step(
                        step,
                        episode=episode,
                        reward=reward,
                        terminated=terminated,
                        truncated=truncated,
                        action=action,
                    )
            if not over:
                break  # max_steps cut this episode short: its return is meaningless
            episodes += 1
            total += episode_return
            recent.append(episode_return)
            emitter.episode(episode, episode_return, length=step - start, step=step, seed=seed)
            if (episode + 1) % _WINDOW == 0 or episode + 1 == config.episodes:
                emitter.scalars(step, {f"return_mean_{_WINDOW}": fmean(recent), "return_mean": total / episodes})
    finally:
        env.close()
    summary = {"steps": step, "episodes": episodes, "return_mean": total / episodes if episodes else None}
    emitter.run_completed(step=step, episodes=episodes, summary=summary)


class BaselineInteractive(InteractiveWorker):
    """Answers requests, with its own environment or as an agent in another."""

    def __init__(self, context: RunContext[BaselineConfig]) -> None:
        """Keep the config; the environment is made by the first reset."""
        self._config = context.config
        self._env: gymnasium.Env[Any, Any] | None = None
        self._own_agent: Agent | None = None
        self._mask: Any = None
        self._running = False
        self._meanings: dict[str | None, list[str]] = {}
        self._spaces: dict[str | None, Any] = {}
        self._lanes: dict[tuple[str | None, int], Agent] = {}

    def reset(self, seed: int | None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; the same seed gives the same episode."""
        if self._env is None:
            self._env = make_env(self._config)
        if self._own_agent is None or seed is not None:
            self._own_agent = make_agent(self._config.agent, self._env.action_space, seed, action_meanings(self._env))
        observation, info = self._env.reset(seed=seed)
        self._mask, self._running = info.get("action_mask"), True
        return observation, info

    def step(self, action: Any) -> StepResult:
        """Take the given action, or the agent's own."""
        if self._env is None or self._own_agent is None or not self._running:
            raise RequestError("no episode is running: send reset first")
        if action is None:
            taken = self._own_agent.act(None, self._mask)
        else:
            taken = value_from_json(self._env.action_space, action)
            if not self._env.action_space.contains(taken):
                raise RequestError(f"action {action!r} is not in {self._env.action_space}")
        observation, reward, terminated, truncated, info = self._env.step(taken)
        self._mask, self._running = info.get("action_mask"), not (terminated or truncated)
        return StepResult(taken, observation, reward, terminated, truncated, info)

    def inform(self, agent: str | None, facts: dict[str, Any]) -> None:
        """Learn what the actions of an agent mean."""
        if "action_meanings" in facts:
            self._meanings[agent] = facts["action_meanings"]

    def init_agent(self, observation_space: Any, action_space: Any, seed: int | None, agent: str | None) -> None:
        """Prepare an agent for an environment elsewhere; there may be several, by name."""
        self._spaces[agent] = action_space
        self._lanes = {key: known for key, known in self._lanes.items() if key[0] != agent}
        self._lanes[agent, 0] = self._agent(agent, seed)

    def begin_episode(self, agent: str | None, seed: int, episode: int, lane: int) -> None:
        """Give a lane an agent of its own, so that its actions depend on its seed alone."""
        if agent not in self._spaces:
            raise RequestError(f"agent {agent!r} is not known: send init_agent first")
        self._lanes[agent, lane] = self._agent(agent, seed)

    def select_actions(self, agent: str | None, observations: Any, lanes: list[int], action_masks: Any) -> list[Any]:
        """Choose an action in each lane."""
        try:
            players = [self._lanes[agent, lane] for lane in lanes]
        except KeyError:
            raise RequestError(f"agent {agent!r} is not known: send init_agent first") from None
        masks = [None] * len(lanes) if action_masks is None else action_masks
        return [player.act(None, mask) for player, mask in zip(players, masks, strict=True)]

    def _agent(self, agent: str | None, seed: int | None) -> Agent:
        space = space_from_json(self._spaces[agent])  # each lane samples a space of its own
        return make_agent(self._config.agent, space, seed, self._meanings.get(agent))

    def close(self) -> None:
        """Close the environment."""
        if self._env is not None:
            self._env.close()
