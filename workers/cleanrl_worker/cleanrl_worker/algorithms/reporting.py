"""Reports a training: events for MOSAIC, TensorBoard files, and Weights & Biases if requested."""

import math
from collections import deque
from collections.abc import Mapping
from statistics import fmean
from typing import Any

from torch.utils.tensorboard import SummaryWriter

from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.environments import EpisodeTap
from mosaic_worker.context import RunContext
from mosaic_worker.errors import WorkerError

__all__ = ["Reporter"]

_WINDOW = 100
_MAY_BE_NAN = "losses/explained_variance"
"""NaN if all returns of a rollout are equal."""


class Reporter:
    """Counts steps and episodes, and reports."""

    def __init__(
        self, context: RunContext[CleanRLWorkerConfig], settings: Mapping[str, Any], step: int, episodes: int
    ) -> None:
        """Continue counting from `step` and `episodes`."""
        self.step = step
        self.episodes = episodes
        self._emitter = context.emitter
        self._returns: deque[float] = deque(maxlen=_WINDOW)
        extras = context.config.extras
        self._wandb = _begin_wandb(context, settings) if extras.track_wandb else None
        folder = context.run_dir / extras.tensorboard_dir
        self._board = SummaryWriter(str(folder), purge_step=step or None)
        rows = "\n".join(f"|{name}|{value}|" for name, value in settings.items())
        self._board.add_text("hyperparameters", f"|param|value|\n|-|-|\n{rows}", step)

    @property
    def return_mean(self) -> float | None:
        """The mean return of the last hundred episodes."""
        return fmean(self._returns) if self._returns else None

    def on_end(self, tap: EpisodeTap, info: dict[str, Any]) -> None:
        """Report a finished episode, and in a curriculum its stage."""
        about = {name: info[name] for name in ("stage", "env_id") if name in info}
        self._returns.append(tap.total)
        self._emitter.episode(self.episodes, tap.total, length=tap.length, step=self.step, info=about or None)
        self._board.add_scalar("charts/episodic_return", tap.total, self.step)
        self._board.add_scalar("charts/episodic_length", tap.length, self.step)
        self.episodes += 1

    def scalars(self, values: Mapping[str, float]) -> None:
        """Report the figures of an update; raise if a loss is NaN or infinite."""
        for tag, value in values.items():
            if "loss" in tag and tag != _MAY_BE_NAN and not math.isfinite(value):
                kind = "NaN" if math.isnan(value) else "infinite"
                raise WorkerError(f"loss is {kind} at step {self.step} ({tag}): try a smaller learning_rate")
        self._emitter.scalars(self.step, values)
        for tag, value in values.items():
            self._board.add_scalar(tag, value, self.step)

    def log(self, message: str, level: str = "info") -> None:
        """Report a message."""
        self._emitter.log(level, message, step=self.step)

    def close(self) -> None:
        """Flush everything to disk."""
        self._board.close()
        if self._wandb is not None:
            self._wandb.finish()


def _begin_wandb(context: RunContext[CleanRLWorkerConfig], settings: Mapping[str, Any]) -> Any:
    """Start W&B before TensorBoard, so that it copies its files; offline, nothing leaves the run's folder."""
    import wandb  # noqa: PLC0415 - slow to import

    extras = context.config.extras
    return wandb.init(
        project=extras.wandb_project_name,
        entity=extras.wandb_entity,
        mode=extras.wandb_mode,
        dir=str(context.run_dir),
        name=context.config.run_id,
        config=dict(settings),
        sync_tensorboard=True,
    )
