"""Training: XuanCe's own loop, with callbacks that report, save and stop."""

import math
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from xuance.common import MultiAgentBaseCallback
from xuance.environment import make_envs
from xuance.torch.agents import REGISTRY_Agents

from mosaic_worker.context import RunContext
from mosaic_worker.errors import RunCancelled, WorkerError
from mosaic_worker.frames.fastlane import FastLane
from mosaic_worker.spaces import space_to_json
from xuance_worker.checkpoints import FOLDERS, About, load_weights, save
from xuance_worker.config import XuanCeWorkerConfig
from xuance_worker.policies import restore_normalisation
from xuance_worker.registry import Agent
from xuance_worker.task import Task
from xuance_worker.wrappers import register

__all__ = ["Start", "make_lane", "train", "use_threads"]

CHECKPOINTS = "checkpoints"
TENSORBOARD = "tensorboard"
_SCALARS_S = 0.25
"""Minimum seconds between two reports of scalars: some algorithms update in every step."""
_EPISODE_KEY = "Train-Results/Episode-Rewards"
"""Under this name XuanCe logs the end of an episode, as {"env-3": return}."""
_EXPLORATION = ("e_greedy", "egreedy", "noise_scale", "PER_beta")
"""Where XuanCe's agents keep what changes while they explore."""
NO_REPLAY = "the replay memory is not restored: the run first collects experience anew, for start_training steps"

Context = RunContext[XuanCeWorkerConfig]


class Start:
    """Where a training begins: at step 0, or at a checkpoint."""

    def __init__(self, target: int, path: Path | None = None, about: About | None = None, field: str = "") -> None:
        """Take the step to train to, and the checkpoint to continue from."""
        self.target = target
        self.path = path
        self.field = field
        self.about = about
        self.step = about.step if about is not None else 0
        self.episodes = about.episodes if about is not None else 0


class Reporter(MultiAgentBaseCallback):  # type: ignore[misc]
    """Turns XuanCe's callbacks into events, saves checkpoints when they are due, and stops the loop when asked to."""

    def __init__(self, context: Context, start: Start, save_now: Callable[[int], None]) -> None:
        """Count on from where the training begins."""
        super().__init__()
        self.episodes = start.episodes
        self.learner: Any = None
        self.updates = 0
        self._iterations = start.about.iterations if start.about is not None else 0
        self._context = context
        self._emitter = context.emitter
        self._save = save_now
        self._every = context.config.checkpoint_every
        self._due = start.step + self._every
        self._since = (time.monotonic(), start.step)
        self._told = 0.0

    def on_train_episode_info(self, **what: Any) -> None:
        """Report an episode; its return is the mean of the agents', as XuanCe has it."""
        info = what["infos"][what["env_id"]]
        score, length = info["episode_score"], int(info["episode_step"])
        returns = {agent: float(value) for agent, value in score.items()} if isinstance(score, Mapping) else None
        total = sum(returns.values()) / len(returns) if returns else float(score)
        step = int(what["current_step"])
        self._emitter.episode(self.episodes, total, length=length, step=step, returns=returns)
        self.episodes += 1
        self._context.stop.check()

    def on_train_epochs_end(self, current_step: int, **what: Any) -> None:
        """Report losses, the learning rate and the speed, not too often."""
        # XuanCe also calls back where it did not update: then there are no losses, and its counter stands.
        self.updates += bool(what.get("update_info")) or self.learner.iterations > self._iterations
        self._iterations = self.learner.iterations
        now = time.monotonic()
        if now - self._told >= _SCALARS_S:
            self._told = now
            self._tell(int(current_step), what.get("update_info") or {}, now)
        self.on_train_step_end(current_step)  # XuanCe's loops for recurrent policies call that one at the end only.

    def on_test_step(self, *_: Any, **__: Any) -> None:
        """Stop if that was asked; in spite of its name, recurrent policies call this one while they train."""
        self._context.stop.check()

    def on_train_step_end(self, current_step: int, **_: Any) -> None:
        """Save if it is time; stop if that was asked."""
        if current_step >= self._due:
            self._due = current_step + self._every
            self._save(int(current_step))
        self._context.stop.check()

    def _tell(self, step: int, update: Mapping[str, Any], now: float) -> None:
        together: dict[str, float] = {}
        apart: dict[str, dict[str, float]] = {}
        for name, value in update.items():
            number = _number(value)
            if number is None:
                continue
            if "loss" in name.lower() and not math.isfinite(number):
                kind = "NaN" if math.isnan(number) else "infinite"
                raise WorkerError(f"loss is {kind} at step {step} ({name}): try a smaller learning_rate")
            agent, slash, rest = name.partition("/")
            if slash and agent in getattr(self.learner, "agent_keys", ()):
                apart.setdefault(agent, {})[rest] = number
            else:
                together[name] = number
        before, at = self._since
        if step > at and now > before:
            together["steps_per_second"] = (step - at) / (now - before)
            self._since = now, step
        if (rate := _learning_rate(self.learner)) is not None:
            together["learning_rate"] = rate
        self._emitter.scalars(step, together)
        for agent, values in apart.items():
            self._emitter.scalars(step, values, agent=agent)


def use_threads() -> None:
    """Let torch compute with one thread unless OMP_NUM_THREADS says otherwise: the networks are small."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))


def make_lane(context: Context) -> FastLane:
    """Make what shows the run's frames."""
    config = context.config
    return FastLane(
        config.fastlane_settings(os.environ),
        os.environ.get("MOSAIC_FASTLANE_DIR"),
        record=config.record_settings(os.environ),
        run_dir=context.run_dir,
        emitter=context.emitter,
    )


def train(context: Context, task: Task, seed: int, start: Start, versions: Mapping[str, str]) -> dict[str, Any]:
    """Train to the target; save at the end, and when the run is stopped."""
    use_threads()
    config, emitter = context.config, context.emitter
    lane = make_lane(context)
    arguments = task.arguments(seed, start.target, config.device, context.run_dir / TENSORBOARD)
    arguments.env_seed = seed + start.step  # A resumed training sees other episodes than it began with.
    arguments.render_mode = "rgb_array" if lane.wants_frames else None
    with register(task.spaces.wrapper, lane):
        envs = make_envs(arguments)
    arguments.env_seed = seed
    folder, saved = context.run_dir / CHECKPOINTS, -1

    def save_now(step: int) -> None:
        nonlocal saved
        if step == saved:
            return
        about = _about(task, seed, step, start.target, reporter.episodes, agent, versions)
        path = save(about, agent.learner, folder)
        saved = step
        emitter.checkpoint_saved(path.relative_to(context.run_dir), step=step)
        FOLDERS.keep_newest(folder, config.checkpoint_keep)

    reporter = Reporter(context, start, save_now)
    try:
        agent = _agent_class(task.agent)(arguments, envs, callback=reporter)
        reporter.learner = agent.learner
        _restore(context, agent, start)
        steps = max(0, start.target - start.step) // envs.num_envs
        try:
            agent.train(steps)
        except RunCancelled:
            save_now(int(agent.current_step))
            raise
        save_now(int(agent.current_step))
        agent.finish()
    finally:
        envs.close()
    if steps and reporter.updates == 0 and start.about is None:
        emitter.log("warning", "nothing was learned: the run ended before the first update; give more running_steps")
    return {"steps": int(agent.current_step), "episodes": reporter.episodes, "updates": reporter.updates}


def _agent_class(agent: Agent) -> Any:
    """Return XuanCe's class; where its loop does not call back, a subclass that calls back when the loop logs."""
    upstream = REGISTRY_Agents[agent.name]
    if not agent.silent:
        return upstream

    class Calling(upstream):  # type: ignore[misc, valid-type]
        def log_infos(self, info: dict[str, Any], x_index: int) -> None:
            super().log_infos(info, x_index)
            if agent.silent == "updates" and not any("Episode" in name for name in info):
                self.callback.on_train_epochs_end(x_index, update_info=info)
            elif agent.silent == "episodes":
                for place in info.get(_EPISODE_KEY, ()):
                    number = int(place.removeprefix("env-"))
                    infos = self.train_envs.buf_info
                    self.callback.on_train_episode_info(infos=infos, env_id=number, current_step=x_index)

    return Calling


def _restore(context: Context, agent: Any, start: Start) -> None:
    """Continue from a checkpoint: weights, optimizer, step counter and exploration."""
    if start.path is None or start.about is None:
        return
    load_weights(start.path, agent.learner, start.field)
    restore_normalisation(agent, start.about)
    agent.current_step = start.step
    agent.learner.iterations = start.about.iterations
    for name, value in start.about.exploration.items():
        setattr(agent, name, value)
    np.random.seed((start.about.seed + start.step) % 2**32)  # noqa: NPY002 - XuanCe draws from it
    context.emitter.checkpoint_loaded(str(start.path), step=start.step)
    if "start_training" in start.about.settings:
        agent.start_training = start.step + start.about.settings["start_training"]
        context.emitter.log("warning", NO_REPLAY, step=start.step)


def _about(
    task: Task, seed: int, step: int, target: int, episodes: int, agent: Any, versions: Mapping[str, str]
) -> About:
    spaces = task.spaces
    normalises = getattr(agent, "use_obsnorm", False)
    statistics = {name: getattr(agent.obs_rms, name) for name in ("count", "mean", "var")} if normalises else None
    settings = {**task.settings, "env_name": spaces.wrapper}
    exploration = {name: value for name in _EXPLORATION if (value := getattr(agent, name, None)) is not None}
    return About(
        agent=task.agent.name,
        env=spaces.env,
        env_id=task.env_id,
        seed=seed,
        step=step,
        target=target,
        episodes=episodes,
        iterations=int(agent.learner.iterations),
        settings=settings,
        agents=list(spaces.agents),
        observation_spaces={name: space_to_json(space) for name, space in spaces.observations.items()},
        action_spaces={name: space_to_json(space) for name, space in spaces.actions.items()},
        state_space=None if spaces.state is None else space_to_json(spaces.state),
        versions=dict(versions),
        exploration=exploration,
        obs_rms=statistics,
    )


def _number(value: Any) -> float | None:
    """Return a scalar as a number; None for what is no scalar."""
    try:
        return float(value.detach().cpu().item() if isinstance(value, torch.Tensor) else np.asarray(value).item())
    except (TypeError, ValueError, RuntimeError):
        return None


def _learning_rate(learner: Any) -> float | None:
    found = getattr(learner, "optimizer", None)
    while isinstance(found, dict | list):
        found = next(iter(found.values() if isinstance(found, dict) else found), None)
    return float(found.param_groups[0]["lr"]) if found is not None else None
