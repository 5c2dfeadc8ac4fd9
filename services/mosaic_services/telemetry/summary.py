"""Live aggregates of a run, updated batch by batch. Pure: time is an argument."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import orjson

from mosaic_bus.messages import RunSummary
from mosaic_services.telemetry.columns import TEAM
from mosaic_services.telemetry.tally import Tally
from mosaic_worker.events import Kind

if TYPE_CHECKING:
    from mosaic_services.telemetry.columns import Journal
    from mosaic_worker.events import Event

__all__ = ["SCALARS", "Summary"]

SCALARS = 256
"""Scalars per summary. More are stored as series, but would make every message large."""
_IN_COLUMNS = frozenset({Kind.EPISODE, Kind.SCALARS})
_RATE_EVERY_S = 0.25
"""Minimum time between two measurements of speed."""
_RATE_MEMORY_S = 3.0
"""Time constant of the exponential smoothing of speed."""


@dataclass(slots=True)
class Summary:
    """The state behind a `RunSummary`. It is saved with every commit, except for the last measurement of speed.

    `tally` and `scalars` are those of the whole run, as `course` joins its attempts; the rest is about one attempt.
    """

    task: str = ""
    events: int = 0
    step: int = 0
    total_steps: int | None = None
    total_episodes: int | None = None
    steps_per_s: float = 0.0
    tally: Tally = field(default_factory=Tally)
    scalars: dict[str, float] = field(default_factory=dict)
    malformed: int = 0
    last_event_at: float | None = None
    last_heartbeat_at: float | None = None
    checkpoint: str | None = None
    outcome: str | None = None
    step_before: int | None = None  # of the attempts before, until this one has reported anything of a step itself
    _rated: tuple[float, int] | None = None  # when the speed was last measured, and at which step

    # ── updates ───────────────────────────────────────────────────────────────────

    def add(self, journal: Journal) -> None:
        """Add the lines of a batch: plain steps together, other events one by one."""
        self.events += len(journal.kinds)
        if self.step_before is not None and journal.has_begun:
            self.step_before = self._rated = None
        if journal.top_step is not None and journal.top_step > self.step:
            self.step = journal.top_step
        for row in journal.episodes:
            self.tally.add(row.agent, row.episode, row.value)
        for metric, agent, _, _, value, _ in journal.points:
            if agent == TEAM and value is not None and (metric in self.scalars or len(self.scalars) < SCALARS):
                self.scalars[metric] = value
        for _, event in journal.events:
            if event.kind not in _IN_COLUMNS:
                self._add_event(event)
        if (last := next((each for each in reversed(journal.times) if each is not None), None)) is not None:
            self.last_event_at = last if math.isfinite(last) else None

    def _add_event(self, event: Event) -> None:
        match event.kind:
            case Kind.HEARTBEAT:
                self.last_heartbeat_at = event.ts
            case Kind.RUN_STARTED:
                self.task = event.text("task") or event.text("env_id")
                self.total_steps = _count(event.fields.get("total_steps"))
                self.total_episodes = _count(event.fields.get("total_episodes"))
            case Kind.CHECKPOINT_SAVED:
                self.checkpoint = event.text("path") or None
            case Kind.MALFORMED:
                self.malformed += 1
            case _ if event.is_terminal:
                self.outcome = event.kind

    def next_attempt(self) -> Summary:
        """Return the summary with which a later attempt begins."""
        return Summary(
            task=self.task,
            total_steps=self.total_steps,
            total_episodes=self.total_episodes,
            tally=self.tally.copy(),
            scalars=self.scalars.copy(),
            step_before=max(self.step, self.step_before or 0),
        )

    # ── speed ───────────────────────────────────────────────────────────────────────────────────

    def rate(self, now: float) -> bool:
        """Measure the speed by our own clock, since clocks of workers jump; return whether it changed."""
        if self._rated is None or self.step_before is not None:
            self._rated = (now, self.step)
            return False
        since, step = self._rated
        elapsed = now - since
        if elapsed < _RATE_EVERY_S:
            return False
        speed = max(0, self.step - step) / elapsed
        weight = 1 - math.exp(-elapsed / _RATE_MEMORY_S) if self.steps_per_s else 1.0
        before, self.steps_per_s = self.steps_per_s, self.steps_per_s + weight * (speed - self.steps_per_s)
        if self.steps_per_s < 0.01:  # noqa: PLR2004 - shown as 0
            self.steps_per_s = 0.0
        self._rated = (now, self.step)
        return self.steps_per_s != before

    # ── messages and saved state ──────────────────────────────────────────────────────────────────────────────

    def message(self, run: str, attempt: int, **stream: Any) -> RunSummary:
        """Make the message; `stream` holds the counters of the journal's stream."""
        returns = self.tally.team
        mean, spread = returns.mean_and_spread()
        return RunSummary(
            run=run,
            attempt=attempt,
            task=self.task,
            events=self.events,
            step=max(self.step, self.step_before or 0),
            total_steps=self.total_steps,
            episodes=returns.episodes,
            total_episodes=self.total_episodes,
            steps_per_s=round(self.steps_per_s, 2),
            return_last=returns.last,
            return_mean=mean,
            return_std=spread,
            returns=list(self.tally.curve.points),
            agents=self.tally.by_agent(),
            scalars=dict(self.scalars),
            malformed=self.malformed,
            last_event_at=self.last_event_at,
            last_heartbeat_at=self.last_heartbeat_at,
            checkpoint=self.checkpoint,
            outcome=self.outcome,
            **stream,
        )

    def copy(self) -> Summary:
        """Return an independent copy."""
        return replace(self, tally=self.tally.copy(), scalars=self.scalars.copy())

    def dump(self) -> bytes:
        """Serialise the state. This is done for every commit, so it must be fast."""
        state = {name: getattr(self, name) for name in self.__slots__ if not name.startswith("_")}
        state["tally"] = self.tally.dump()
        # JSON has no NaN and no infinities.
        if not all(map(math.isfinite, self.scalars.values())):
            state["scalars"] = {
                name: value if math.isfinite(value) else str(value) for name, value in self.scalars.items()
            }
        return orjson.dumps(state)

    @classmethod
    def load(cls, state: bytes | None) -> Summary:
        """Read what `dump` wrote."""
        if not state:
            return cls()
        fields = orjson.loads(state)
        fields["scalars"] = {name: float(value) for name, value in fields["scalars"].items()}
        return cls(**{**fields, "tally": Tally.load(fields["tally"])})


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 2**63 else None
