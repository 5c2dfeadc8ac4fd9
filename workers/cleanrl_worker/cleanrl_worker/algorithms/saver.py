"""Keeps the checkpoints of a training: writes and reports them, and removes old ones."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cleanrl_worker.algorithms.state import TrainingState
from cleanrl_worker.config import CleanRLWorkerConfig
from mosaic_worker.context import RunContext

__all__ = ["Saver"]


class Saver:
    """The checkpoints of one attempt: the newest `extras.checkpoint_keep`, and the best."""

    def __init__(
        self,
        context: RunContext[CleanRLWorkerConfig],
        state: TrainingState,
        course: Callable[[], dict[str, Any]] | None,
    ) -> None:
        """Save `state` and, of a curriculum, what `course` returns."""
        self.last_step = -1
        self.best: Path | None = None
        self._context = context
        self._state = state
        self._course = course
        self._saved: list[Path] = []
        """The checkpoints that are there, newest last."""

    @property
    def last(self) -> str:
        """The newest checkpoint, relative to the run's folder."""
        return str(self._relative(self._saved[-1])) if self._saved else ""

    def save(self, step: int, episodes: int, best_score: float | None, *, is_best: bool = False) -> None:
        """Write a checkpoint and report it; `best_score` is the best of all evaluations, `is_best` if this one's."""
        course = self._course() if self._course is not None else None
        path = self._state.save(self._context.run_dir / "checkpoints", step, episodes, course, best_score)
        self._saved.append(path)
        self.last_step = step
        if is_best:
            self.best = path
            self._context.emitter.checkpoint_saved(self._relative(path), step=step, best=True, score=best_score)
        else:
            self._context.emitter.checkpoint_saved(self._relative(path), step=step)
        for old in [old for old in self._saved[: -self._context.config.extras.checkpoint_keep] if old != self.best]:
            self._saved.remove(old)
            old.unlink(missing_ok=True)

    def summary(self, best_score: float | None) -> dict[str, Any]:
        """Where the last and the best checkpoint are."""
        if self.best is None:
            return {"checkpoint": self.last}
        return {"checkpoint": self.last, "best_checkpoint": str(self._relative(self.best)), "best_score": best_score}

    def _relative(self, path: Path) -> Path:
        return path.relative_to(self._context.run_dir)
