"""Training: RLlib's own loop, one iteration at a time; after each, what happened is reported and saved."""

import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from ray.exceptions import RayActorError

from mosaic_worker.context import RunContext
from mosaic_worker.errors import ConfigError, WorkerError
from mosaic_worker.spaces import space_to_json
from ray_worker.algorithms import Task, algorithm_config
from ray_worker.analytics import CHECKPOINTS, TENSORBOARD
from ray_worker.callbacks import EPISODES
from ray_worker.checkpoints import FOLDERS, About
from ray_worker.cluster import connect
from ray_worker.config import PolicyConfiguration, RayWorkerConfig
from ray_worker.league import League
from ray_worker.sitecustomize import keep_out_of_home

__all__ = ["Start", "Training", "train"]

NO_REPLAY = "the replay memory is not restored: the run collects experience anew before it learns on"
DEAD_RUNNER = (
    "an env runner has ended, as it does when its environment raises an error. The run's log has the reason, and so "
    "has ray_logs in its folder if the cluster was the run's own"
)
_LEARNERS, _RUNNERS = "learners", "env_runners"
_STEPS = "num_env_steps_sampled_lifetime"
_ALL = "__all_modules__"
_SKIPPED = ("num_", "timer", "connector", "throughput", "weights_seq_no", "module_train_batch", "diff_num")
"""Parts of names of RLlib's figures that are counters and timers of its own."""
_WAIT_S = 0.5
"""Longest time in which a paused run notices that it is to stop."""

Context = RunContext[RayWorkerConfig]


class Start:
    """Where a training begins: at step 0, or at a checkpoint."""

    def __init__(self, target: int, path: Path | None = None, about: About | None = None, field: str = "") -> None:
        """Take the step to train to, and the checkpoint to continue from."""
        self.target = target
        self.path = path
        self.about = about
        self.field = field
        self.step = about.step if about is not None else 0
        self.episodes = about.episodes if about is not None else 0
        self.iterations = about.iterations if about is not None else 0


class Pause:
    """SIGUSR1 pauses the training at the end of an iteration, with a checkpoint; SIGUSR2 continues it."""

    def __init__(self) -> None:
        """Handle the signals, in the main thread only."""
        self._go = threading.Event()
        self._go.set()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR1, self._pause)
            signal.signal(signal.SIGUSR2, self._resume)

    def wait(self, context: Context, step: int, save_now: Callable[[], None]) -> None:
        """Return at once, or when the run is continued or is to stop."""
        if self._go.is_set():
            return
        save_now()
        context.emitter.log("info", "paused: SIGUSR2 continues", step=step)
        while not self._go.wait(_WAIT_S) and not context.stop.requested:
            pass
        if not context.stop.requested:
            context.emitter.log("info", "continued", step=step)

    def _pause(self, _number: int, _frame: FrameType | None) -> None:
        self._go.clear()

    def _resume(self, _number: int, _frame: FrameType | None) -> None:
        self._go.set()


class Training:
    """One training: RLlib's algorithm, and everything that is reported of it."""

    def __init__(self, context: Context, task: Task, seed: int, start: Start, versions: Mapping[str, str]) -> None:
        """Build the algorithm, and restore it if it continues from a checkpoint. Ray must be connected."""
        self._context, self._task, self._seed, self._start = context, task, seed, start
        self._versions = versions
        self.step, self.episodes, self.iterations = start.step, start.episodes, start.iterations
        self.updates = 0
        self._saved = -1
        self._due = start.step + context.config.checkpoint.checkpoint_every
        self._counted = 0
        """RLlib's own counter of steps, which a restored algorithm continues or begins again."""
        self._board: Any = None
        made = algorithm_config(task, context.config, seed, context.run_dir, start.step)
        keep_out_of_home(context.run_dir)
        self.algorithm = made.build_algo()
        Path(self.algorithm.logdir).rmdir()  # It stays empty: we write what TensorBoard needs.
        context.stop.install()  # Ray has set its own handlers.
        about = start.about
        plays_itself = task.policies.configuration == PolicyConfiguration.SELF_PLAY
        self.league = League(context.config.self_play, about.league if about else None) if plays_itself else None
        if start.path is not None:
            self._restore(start.path)
        elif self.league is not None:
            self.league.fill(self.algorithm)

    def run(self) -> None:
        """Train to the target; save at the end, and when the run is stopped."""
        context, every = self._context, self._context.config.checkpoint.checkpoint_every
        pause = Pause()
        while self.step < self._start.target and not context.stop.requested:
            began = time.monotonic()
            before = self.step
            self._tell(self._iterate(), before, began)
            if self.step >= self._due:
                self._due = self.step + every
                self.save()
            pause.wait(context, self.step, self.save)
        self.save()

    def save(self) -> None:
        """Write a checkpoint, unless this step has one."""
        if self.step == self._saved:
            return
        self._saved = self.step
        context = self._context
        folder = context.run_dir / CHECKPOINTS
        about = self._about()
        path = FOLDERS.save(about, about.step, lambda draft: self.algorithm.save_to_path(str(draft)), folder)
        context.emitter.checkpoint_saved(path.relative_to(context.run_dir), step=self.step)
        FOLDERS.keep_newest(folder, context.config.checkpoint.checkpoint_keep)

    def close(self) -> None:
        """End RLlib's actors."""
        if self._board is not None:
            self._board.close()
        self.algorithm.stop()

    def _iterate(self) -> Mapping[str, Any]:
        """Train for an iteration. Where an environment raises, RLlib's own error does not say so."""
        try:
            result: Mapping[str, Any] = self.algorithm.train()
        except RayActorError as error:  # An env runner has left with exit code 1.
            raise WorkerError(DEAD_RUNNER) from error
        except RuntimeError as error:  # The environment is in this process, and RLlib's error has no text.
            cause = error.__cause__
            if str(error) or cause is None:
                raise
            raise WorkerError(f"{type(cause).__name__}: {cause}") from error
        return result

    def _restore(self, path: Path) -> None:
        try:
            self.algorithm.restore_from_path(str(path))
        except Exception as error:
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise ConfigError(f"{self._start.field}: {str(path)!r} does not fit the run: {reason}") from error
        self._counted = int(self.algorithm.metrics.peek((_RUNNERS, _STEPS), default=0) or 0)
        self._context.emitter.checkpoint_loaded(str(path), step=self._start.step)
        if self._task.is_off_policy and not self._task.params.get("store_buffer_in_checkpoints"):
            self._context.emitter.log("warning", NO_REPLAY, step=self._start.step)

    def _tell(self, result: Mapping[str, Any], before: int, began: float) -> None:
        """Report an iteration: episodes, losses, and the speed."""
        emitter = self._context.emitter
        runners = result.get(_RUNNERS) or {}
        counted = int(runners.get(_STEPS) or result.get(_STEPS) or self._counted)
        self.step += max(0, counted - self._counted)
        self._counted = max(self._counted, counted)
        self.iterations += 1
        self._tell_episodes(runners.get(EPISODES))
        together: dict[str, float] = {"steps_per_second": (self.step - before) / max(1e-9, time.monotonic() - began)}
        if (mean := _number(runners.get("episode_return_mean"))) is not None:
            together["episode_return_mean"] = mean
        if self.league is not None:
            together |= self.league.figures()
            name = self.league.grow(self.algorithm, self.step)
            if name is not None:
                emitter.log("info", f"the learner won often enough: {name} is now a copy of it", step=self.step)
        apart = dict(_losses(result.get(_LEARNERS) or {}, self._task.policies.trained))
        self.updates += bool(apart)
        if len(apart) == 1:
            together |= apart.popitem()[1]
        emitter.scalars(self.step, together)
        for module, figures in apart.items():
            emitter.scalars(self.step, figures, agent=module)
        self._draw(together, apart)

    def _tell_episodes(self, lines: Any) -> None:
        for line in [lines] if isinstance(lines, str) else lines if isinstance(lines, list) else ():
            found = json.loads(line)
            returns = found["returns"]
            several = returns if self._task.environment.is_multi else None
            total = sum(returns.values()) / len(returns)
            self._context.emitter.episode(self.episodes, total, length=found["length"], step=self.step, returns=several)
            self.episodes += 1
            if self.league is not None:
                self.league.count(returns, found["modules"])

    def _draw(self, together: Mapping[str, float], apart: Mapping[str, Mapping[str, float]]) -> None:
        """Write the same figures for TensorBoard."""
        if self._board is None:
            from tensorboardX import SummaryWriter  # noqa: PLC0415 - takes half a second

            self._board = SummaryWriter(str(self._context.run_dir / TENSORBOARD))
        figures = {
            **together,
            **{f"{module}/{name}": each for module, found in apart.items() for name, each in found.items()},
        }
        for name, value in figures.items():
            self._board.add_scalar(name, value, self.step)

    def _about(self) -> About:
        task, config = self._task, self._context.config
        return About(
            algorithm=task.algorithm,
            config=config.model_dump(mode="json", exclude={"run_id", "worker_id"}) | {"seed": self._seed},
            env_id=task.environment.env_id,
            family=task.environment.family,
            api_type=task.environment.api,
            policy_configuration=str(task.policies.configuration),
            agents=dict(task.policies.agents),
            observation_spaces={name: space_to_json(space) for name, space in task.spaces.observations.items()},
            raw_spaces={name: space_to_json(space) for name, space in task.spaces.raw.items()},
            action_spaces={name: space_to_json(space) for name, space in task.spaces.actions.items()},
            modules=list(task.policies.members),
            seed=self._seed,
            step=self.step,
            target=self._start.target,
            episodes=self.episodes,
            iterations=self.iterations,
            versions=dict(self._versions),
            league=self.league.state if self.league is not None else None,
        )


def train(context: Context, task: Task, seed: int, start: Start, versions: Mapping[str, str]) -> dict[str, Any]:
    """Train on the run's cluster; return what came out."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))
    with connect(context.config.resources, context.run_dir) as cluster:
        context.emitter.log(
            "info", f"Ray at {cluster['address']}: {cluster['nodes']} nodes, {cluster.get('CPU', 0):g} CPUs"
        )
        context.stop.install()  # Ray has set its own handlers.
        context.stop.check()
        training = Training(context, task, seed, start, versions)
        try:
            training.run()
        finally:
            training.close()
    if training.step > start.step and training.updates == 0 and not context.stop.requested:
        context.emitter.log("warning", "nothing was learned: the run ended before the first update; train for longer")
    return {"steps": training.step, "episodes": training.episodes, "iterations": training.iterations}


def _losses(learners: Mapping[str, Any], trained: tuple[str, ...]) -> Iterator[tuple[str, dict[str, float]]]:
    """The figures of each module that learns: losses, entropy, the learning rate."""
    for module in trained:
        found = {
            name.removeprefix("default_optimizer_"): number
            for name, value in (learners.get(module) or {}).items()
            if not any(part in name for part in _SKIPPED) and (number := _number(value)) is not None
        }
        if found:
            yield module, found


def _number(value: Any) -> float | None:
    """Return a scalar as a number; None for what is no finite scalar."""
    try:
        found = float(np.asarray(value).item())
    except (TypeError, ValueError, RuntimeError):
        return None
    return found if math.isfinite(found) else None
