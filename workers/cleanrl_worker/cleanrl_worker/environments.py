"""Environments for our own code: made by id, tapped, and adapted to an agent."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from cleanrl_worker.agents.minigrid import VIEW
from cleanrl_worker.checks import require_registered, text_of
from cleanrl_worker.config import CleanRLWorkerConfig, Stage
from mosaic_worker.context import RunContext
from mosaic_worker.errors import ConfigError
from mosaic_worker.frames.fastlane import FOLDER, FastLane
from mosaic_worker.frames.settings import RecordSettings

__all__ = ["EpisodeTap", "ImageOf", "check_for_ppo", "check_stages", "fit_to_agent", "make", "make_lane"]

_PICTURE_DIMENSIONS = 3


def make_lane(context: RunContext[CleanRLWorkerConfig], videos: str, slot: int | None = None) -> FastLane:
    """Make the run's FastLane; `videos` is the record setting for `capture_video`.

    `slot` overrides the config's choice of the environment that is recorded.
    """
    extras = context.config.extras
    settings = extras.fastlane_settings(os.environ)
    if slot is not None:
        settings = settings.model_copy(update={"slot": slot})
    record = extras.record_settings(os.environ)
    if extras.capture_video and not record.is_on:
        record = RecordSettings.parse(videos)
    return FastLane(
        settings,
        os.environ.get(FOLDER),
        record=record,
        run_dir=context.run_dir,
        emitter=context.emitter,
    )


def make(env_id: str, *, render: bool, field: str = "env_id") -> gymnasium.Env[Any, Any]:
    """Make an environment, with `render` one that can render if possible; ConfigError names `field`."""
    require_registered(env_id, field)
    # One that cannot render is used without frames, and the lane logs it.
    for options in [{"render_mode": "rgb_array"}, {}] if render else [{}]:
        try:
            return gymnasium.make(env_id, disable_env_checker=True, **options)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
    raise ConfigError(f"{field}: {env_id!r} cannot be made: {problem}")


def fit_to_agent(env: gymnasium.Env[Any, Any], env_id: str) -> tuple[gymnasium.Env[Any, Any], str]:
    """Adapt observations to one of our agents, and return its kind; refuse spaces that no agent supports."""
    if not isinstance(env.action_space, spaces.Discrete):
        raise ConfigError(
            f"ppo needs a discrete action space; {env_id} has {text_of(env.action_space)}. Try ppo_continuous_action."
        )
    space = env.observation_space
    if isinstance(space, spaces.Dict) and "image" in space.spaces:  # MiniGrid: drop direction and mission
        env = ImageOf(env)
        space = env.observation_space
    if isinstance(space, spaces.Box) and space.shape == VIEW and space.dtype == np.uint8:
        return env, "minigrid"
    if isinstance(space, spaces.Box) and len(space.shape) >= _PICTURE_DIMENSIONS:
        raise ConfigError(
            f"ppo learns from rows of numbers or from MiniGrid's {VIEW} view; {env_id} shows pictures,"
            f" {text_of(space)}. Try ppo_atari."
        )
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        try:
            env = gymnasium.wrappers.FlattenObservation(env)
        except NotImplementedError as error:
            raise ConfigError(f"ppo cannot learn from the observations of {env_id}: {text_of(space)}") from error
    if len(env.observation_space.shape or ()) != 1:
        raise ConfigError(f"ppo cannot learn from the observations of {env_id}: {text_of(space)}")
    return env, "mlp"


def check_for_ppo(env_id: str, field: str = "env_id") -> tuple[Any, Any]:
    """Refuse an environment that our ppo does not support; return its adapted spaces."""
    env = make(env_id, render=False, field=field)
    try:
        env, _ = fit_to_agent(env, env_id)
    finally:
        env.close()
    return env.observation_space, env.action_space


def check_stages(stages: Sequence[Stage]) -> None:
    """Refuse a schedule whose stages one agent cannot share."""
    first = None
    for number, stage in enumerate(stages):
        field = f"extras.curriculum_schedule.{number}.env_id"
        try:
            spaces = check_for_ppo(stage.env_id, field)
        except ConfigError as error:
            text = str(error)
            raise ConfigError(text if text.startswith(field) else f"{field}: {text}") from error
        first = first or spaces
        if spaces != first:
            there, here = " and ".join(map(text_of, first)), " and ".join(map(text_of, spaces))
            raise ConfigError(
                f"{field}: {stage.env_id} has {here}, but {stages[0].env_id} has {there}: one agent cannot learn both"
            )


class ImageOf(gymnasium.ObservationWrapper):  # type: ignore[type-arg]
    """Keeps only the image of a dict observation."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = env.observation_space["image"]  # type: ignore[index]

    def observation(self, observation: Any) -> Any:
        """Return the image."""
        return observation["image"]


class EpisodeTap(gymnasium.Wrapper):  # type: ignore[type-arg]
    """Sums the raw rewards of an episode, and calls `on_end` when it ends."""

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        on_end: Callable[["EpisodeTap", dict[str, Any]], None] | None = None,
        gamma: float = 1.0,
    ) -> None:
        """Call `on_end` with the tap and the last info; `gamma` is the discount factor of `discounted`."""
        super().__init__(env)
        self._on_end = on_end
        self._gamma = gamma
        self._begin()

    def _begin(self) -> None:
        self.total = 0.0
        self.discounted = 0.0
        self.length = 0
        self.over = False
        self._discount = 1.0

    def reset(self, **kwargs: Any) -> Any:
        """Begin an episode."""
        result = self.env.reset(**kwargs)
        self._begin()
        return result

    def step(self, action: Any) -> Any:
        """Take a step and count it."""
        result = self.env.step(action)
        reward = float(result[1])
        self.total += reward
        self.discounted += self._discount * reward
        self._discount *= self._gamma
        self.length += 1
        if result[2] or result[3]:
            self.over = True
            if self._on_end is not None:
                self._on_end(self, result[4])
        return result
