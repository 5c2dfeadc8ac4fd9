"""Follows one trial of a driven sweep: which values to report, and its outcome. Pure: no bus, no clock."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mosaic_bus.messages import RunStateName
from mosaic_services.progress import fraction

if TYPE_CHECKING:
    from mosaic_bus.messages import RunState, RunSummary

__all__ = ["RUNGS", "Followed", "Outcome", "metric_value"]

# Number of rungs at which trials are compared. Pruners compare values of equal steps only, and summaries arrive at any
# step, so a value is reported for every rung that has been passed.
RUNGS = 20
# A final run whose telemetry has not changed for this long is judged by what is stored.
_STALLED_S = 15.0


@dataclass(frozen=True)
class Outcome:
    """The outcome of a trial."""

    state: Literal["complete", "pruned", "failed"]
    value: float | None
    reason: str = ""


def metric_value(summary: RunSummary | None, metric: str) -> float | None:
    """The current value of a metric: mean of the last 100 returns, or newest scalar; None if not finite."""
    if summary is None:
        return None
    value = summary.return_mean if metric == "episode_return" else summary.scalars.get(metric)
    return value if value is not None and math.isfinite(value) else None


@dataclass
class Followed:
    """The run of a trial: its latest state and summary, and the last rung that was reported."""

    metric: str
    reported: int = 0
    pruned_at: int | None = None
    state: RunState | None = None
    summary: RunSummary | None = None
    _moved_at: float = 0.0

    def take_state(self, state: RunState, now: float) -> None:
        """Update the state; `now` is monotonic. A final state stays final."""
        if self.state is None or not self.state.state.final:
            self._moved_at = now if state != self.state else self._moved_at
            self.state = state

    def take_summary(self, summary: RunSummary, now: float) -> None:
        """Update the summary; an older one is ignored."""
        if self.summary is None or (summary.attempt, summary.events) >= (self.summary.attempt, self.summary.events):
            self._moved_at = now if summary != self.summary else self._moved_at
            self.summary = summary

    def heard_nothing(self, now: float) -> None:
        """Note that a service is silent: an outage does not count as a stall."""
        self._moved_at = now

    def reports(self) -> list[tuple[int, float]]:
        """Values that are still to be reported, as (rung, value)."""
        value = metric_value(self.summary, self.metric)
        if value is None or self.summary is None:
            return []
        before, self.reported = self.reported, max(self.reported, _rung(self.summary))
        return [(rung, value) for rung in range(before + 1, self.reported + 1)]

    @property
    def prunable(self) -> bool:
        """Whether pruning it now would save anything."""
        on_its_way = self.state is None or not self.state.state.final
        done = fraction(self.summary) if self.summary else 0.0
        return on_its_way and self.pruned_at is None and (done is None or done < 1)

    def outcome(self, now: float) -> Outcome | None:
        """The outcome; None while the trial is still running."""
        if self.state is None or not self.state.state.final:
            return None
        value = metric_value(self.summary, self.metric)
        if self.state.state is not RunStateName.SUCCEEDED:
            if self.pruned_at is not None and self.state.state is RunStateName.CANCELLED:
                return Outcome("pruned", value, f"pruned at step {self.pruned_at:,}")
            return Outcome("failed", None, f"{self.state.state}: {self.state.reason}")
        stored = self.summary is not None and self.summary.complete and self.summary.attempt == self.state.attempt
        if not stored and now - self._moved_at <= _STALLED_S:
            return None
        if value is None:
            return Outcome("failed", None, self._no_value())
        return Outcome("complete", value)

    def _no_value(self) -> str:
        names = sorted(self.summary.scalars) if self.summary else []
        returned = ["episode_return"] if self.summary and self.summary.return_mean is not None else []
        return f"the run has no finite {self.metric!r}; it has: {', '.join([*returned, *names]) or 'nothing'}"


def _rung(summary: RunSummary) -> int:
    """The rung of a run, 0 to RUNGS. If its length is unknown, how often its number of steps has doubled."""
    done = fraction(summary)
    if done is None:
        return int(2 * math.log2(summary.step + 1))
    return int(done * RUNGS)
