"""What becomes of one trial of a driven sweep: which values are reported, and how it ended. Pure: no bus, no clock."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mosaic_bus.messages import RunStateName
from mosaic_services.progress import fraction

if TYPE_CHECKING:
    from mosaic_bus.messages import RunState, RunSummary

__all__ = ["RUNGS", "Followed", "Outcome", "metric_value"]

# Trials are compared at so many points of their way. Pruners compare values of equal steps only, and summaries come
# when they come: a value is therefore reported for every point that has been passed.
RUNGS = 20
# A run that has ended and whose telemetry does not move for this long is judged by what is stored.
_STALLED_S = 15.0


@dataclass(frozen=True)
class Outcome:
    """How a trial ended."""

    state: Literal["complete", "pruned", "failed"]
    value: float | None
    reason: str = ""


def metric_value(summary: RunSummary | None, metric: str) -> float | None:
    """The value of a metric by now: the mean of the last 100 returns, or the newest of a scalar; None if not finite."""
    if summary is None:
        return None
    value = summary.return_mean if metric == "episode_return" else summary.scalars.get(metric)
    return value if value is not None and math.isfinite(value) else None


@dataclass
class Followed:
    """The run of a trial: what was last heard of it, and the last point of its way that was reported."""

    metric: str
    reported: int = 0
    pruned_at: int | None = None
    state: RunState | None = None
    summary: RunSummary | None = None
    _moved_at: float = 0.0

    def take_state(self, state: RunState, now: float) -> None:
        """Take in a state heard at a moment of the monotonic clock; once final, it is final."""
        if self.state is None or not self.state.state.final:
            self._moved_at = now if state != self.state else self._moved_at
            self.state = state

    def take_summary(self, summary: RunSummary, now: float) -> None:
        """Take in a summary; one that is older than what is known is ignored."""
        if self.summary is None or (summary.attempt, summary.events) >= (self.summary.attempt, self.summary.events):
            self._moved_at = now if summary != self.summary else self._moved_at
            self.summary = summary

    def heard_nothing(self, now: float) -> None:
        """Note that a service is silent: an outage does not count as a stall."""
        self._moved_at = now

    def reports(self) -> list[tuple[int, float]]:
        """Values to report that have not been, as (point of the way, value)."""
        value = metric_value(self.summary, self.metric)
        if value is None or self.summary is None:
            return []
        before, self.reported = self.reported, max(self.reported, _rung(self.summary))
        return [(rung, value) for rung in range(before + 1, self.reported + 1)]

    @property
    def prunable(self) -> bool:
        """Whether ending it now would save anything."""
        on_its_way = self.state is None or not self.state.state.final
        done = fraction(self.summary) if self.summary else 0.0
        return on_its_way and self.pruned_at is None and (done is None or done < 1)

    def outcome(self, now: float) -> Outcome | None:
        """How it ended; None while there is something to wait for."""
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
    """How far a run is, from 0 to RUNGS; if its length is unknown, by how often its number of steps has doubled."""
    done = fraction(summary)
    if done is None:
        return int(2 * math.log2(summary.step + 1))
    return int(done * RUNGS)
