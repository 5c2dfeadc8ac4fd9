"""Curricula: Syllabus chooses the stage, and a wrapper swaps the environments under the training loop of ppo.

We use Syllabus's sequence of stages and its wrapper that swaps environments. All environments are in one process, so
its wrappers that share a curriculum between processes, and their SIGINT handler, are not needed.
"""

import contextlib
import io
from collections import deque
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import gymnasium
import numpy as np
from syllabus.core import ReinitTaskWrapper, evaluator
from syllabus.curricula import SequentialCurriculum
from syllabus.task_space import DiscreteTaskSpace

from cleanrl_worker.algorithms.plan import Plan, plan_of
from cleanrl_worker.algorithms.ppo_with_save import VIDEOS, Args, OnEnd, train
from cleanrl_worker.algorithms.reporting import Reporter
from cleanrl_worker.config import CleanRLWorkerConfig, Stage
from cleanrl_worker.environments import EpisodeTap, check_stages, fit_to_agent, make, make_lane
from cleanrl_worker.wrappers.schedule import (
    BABYAI_DOORKEY_CURRICULUM,
    BABYAI_GOTO_CURRICULUM,
    WINDOW,
    Condition,
    condition_of,
    stages_of,
)
from mosaic_worker.context import RunContext
from mosaic_worker.errors import ConfigError

__all__ = [
    "BABYAI_DOORKEY_CURRICULUM",
    "BABYAI_GOTO_CURRICULUM",
    "BabyAITaskWrapper",
    "StagedCurriculum",
    "continue_curriculum",
    "run_curriculum_training",
]

# Syllabus creates shared memory at import, for evaluators that we do not use, and never frees it.
evaluator.GymnasiumEvaluationWrapper.env_count.shm.unlink()


class StagedCurriculum:
    """Syllabus's SequentialCurriculum over the stages of a schedule; reports when a stage begins."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        """Begin with the first stage."""
        self.stages = list(stages)
        self._reporter: Reporter | None = None
        conditions = [condition_of(stage) for stage in self.stages[:-1]]
        self._sequence = SequentialCurriculum(
            list(range(len(self.stages))),
            [self._asks(condition) for condition in conditions],
            DiscreteTaskSpace(len(self.stages)),
            return_buffer_size=WINDOW,
        )

    def _asks(self, condition: Condition) -> Callable[[], bool]:
        def holds() -> bool:
            sequence = self._sequence
            return condition.holds(sequence.n_steps, sequence.n_episodes, sequence.episode_returns)

        return holds

    @property
    def stage(self) -> int:
        """The stage, counted from 0."""
        return int(self._sequence._curriculum_index)  # noqa: SLF001 - Syllabus has no other name for it

    def sample(self) -> int:
        """Return the stage for the next episode of an environment."""
        with contextlib.redirect_stdout(io.StringIO()):  # Syllabus prints a line for each sample
            return int(self._sequence.sample(1)[0])

    def finished(self, stage: int, episode_return: float, length: int) -> None:
        """Count an episode, unless it began before the last change of stage."""
        if stage != self.stage:
            return
        sequence = self._sequence
        figures = sequence.n_steps + length, sequence.n_episodes + 1
        returns = [*sequence.episode_returns, episode_return][-WINDOW:]
        sequence.update_on_episode(episode_return, length, stage, 1.0)
        if self.stage != stage:
            steps, episodes = figures
            self._announce(f" (the one before took {steps:,} steps, {episodes:,} episodes: {fmean(returns):.3f})")

    def attach(self, reporter: Reporter, state: dict[str, Any] | None) -> None:
        """Report through `reporter`, and restore `state` if given."""
        self._reporter = reporter
        if state is not None:
            sequence = self._sequence
            sequence._curriculum_index = state["stage"]  # noqa: SLF001 - Syllabus cannot be saved in another way
            sequence.n_steps, sequence.n_episodes = state["steps"], state["episodes"]
            sequence.episode_returns = deque(state["returns"], maxlen=WINDOW)
        self._announce("")

    def state(self) -> dict[str, Any]:
        """Return the state of the curriculum, as plain JSON."""
        sequence = self._sequence
        return {
            "schedule": [stage.model_dump(exclude_none=True) for stage in self.stages],
            "stage": self.stage,
            "steps": sequence.n_steps,
            "episodes": sequence.n_episodes,
            "returns": [float(value) for value in sequence.episode_returns],
        }

    def _announce(self, remark: str) -> None:
        if self._reporter is not None:
            number, name = self.stage + 1, self.stages[self.stage].env_id
            self._reporter.log(f"stage {number} of {len(self.stages)}: {name}{remark}")
            self._reporter.scalars({"curriculum/stage": number})


class BabyAITaskWrapper(ReinitTaskWrapper):  # type: ignore[misc]
    """An environment that switches to the current stage at the beginning of an episode."""

    def __init__(
        self, curriculum: StagedCurriculum, make_stage: Callable[[int], gymnasium.Env[Any, Any]], seed: int
    ) -> None:
        """`make_stage` makes the environment of a stage, which is seeded from `seed` and the stage."""
        first = make_stage(curriculum.stage)
        super().__init__(first, make_stage)
        self.task_envs[curriculum.stage] = first
        self.task = curriculum.stage
        self._curriculum = curriculum
        self._seed = seed
        self._total = 0.0
        self._length = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in the current stage."""
        stage = self._curriculum.sample()
        if stage not in self.task_envs and seed is None:
            seed = int(np.random.SeedSequence((self._seed, stage)).generate_state(1)[0])
        self.change_task(stage)
        self._total, self._length = 0.0, 0
        view, info = self.env.reset(seed=seed, options=options)
        return view, {**info, **self._where()}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step; report the end of an episode to the curriculum."""
        view, reward, terminated, truncated, info = self.env.step(action)
        self._total += float(reward)
        self._length += 1
        if terminated or truncated:
            info = {**info, **self._where()}
            self._curriculum.finished(self.task, self._total, self._length)
        return view, reward, terminated, truncated, info

    def close(self) -> None:
        """Close the environments of all stages."""
        for env in self.task_envs.values():
            env.close()

    def _where(self) -> dict[str, Any]:
        return {"stage": self.task + 1, "env_id": self._curriculum.stages[self.task].env_id}


def run_curriculum_training(context: RunContext[CleanRLWorkerConfig]) -> dict[str, Any]:
    """Train ppo through the stages of the config's schedule; return a summary."""
    stages = stages_of(context.config.extras.curriculum_schedule or [])
    return _train(context, plan_of(context, Args, stages[0].env_id), stages)


def continue_curriculum(context: RunContext[CleanRLWorkerConfig], plan: Plan[Args]) -> dict[str, Any]:
    """Resume a curriculum from a checkpoint, which also has the schedule."""
    assert plan.checkpoint is not None and plan.checkpoint.about.curriculum is not None  # noqa: S101, PT018
    stages = [Stage.model_validate(stage) for stage in plan.checkpoint.about.curriculum["schedule"]]
    return _train(context, plan, stages)


def _train(context: RunContext[CleanRLWorkerConfig], plan: Plan[Args], stages: list[Stage]) -> dict[str, Any]:
    saved = plan.checkpoint.about.curriculum if plan.checkpoint is not None else None
    if plan.checkpoint is not None:
        given = [stage.model_dump(exclude_none=True) for stage in stages]
        if saved is None or saved["schedule"] != given:
            raise ConfigError(f"{plan.field}: {plan.checkpoint_path!r} was saved by a training with another schedule")
    check_stages(stages)
    curriculum = StagedCurriculum(stages)
    lane = make_lane(context, VIDEOS)

    def make_env(index: int, on_end: OnEnd) -> tuple[gymnasium.Env[Any, Any], str]:
        def make_stage(stage: int) -> gymnasium.Env[Any, Any]:
            env_id = stages[stage].env_id
            return fit_to_agent(make(env_id, render=lane.wants_frames), env_id)[0]

        task = BabyAITaskWrapper(curriculum, make_stage, plan.args.seed + index)
        return fit_to_agent(EpisodeTap(lane.wrap(task, index), on_end), stages[0].env_id)

    summary = train(context, plan, make_env, curriculum, eval_env_id=stages[-1].env_id)
    return {**summary, "stage": curriculum.stage + 1, "stages": len(stages)}
