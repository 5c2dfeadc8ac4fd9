"""Live aggregates of one attempt, in the order of its journal. Pure: time comes in as an argument."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import orjson

from mosaic_bus.messages import RunSummary
from mosaic_services.telemetry.lines import MALFORMED, number, text

if TYPE_CHECKING:
    from mosaic_services.telemetry.lines import Event, Journal

__all__ = ["Summary"]

RECENT_EPISODES = 100
CURVE_POINTS = 40
SCALARS = 256
"""Names beyond these are stored as series but not repeated in every summary."""
_RATE_EVERY_S = 0.25
_RATE_MEMORY_S = 3.0
_HUGE = 1e300
_OUTCOMES = {"run_completed", "run_failed", "run_cancelled"}


@dataclass(slots=True)
class Curve:
    """A whole run's returns in a few points: each the mean of `stride` episodes, and the stride doubles as need be."""

    points: list[float] = field(default_factory=list)
    stride: int = 1
    gathered: int = 0
    total: float = 0.0

    def add(self, value: float) -> None:
        """Take one more return."""
        self.gathered += 1
        self.total = max(-_HUGE, min(self.total + value, _HUGE))
        if self.gathered < self.stride:
            return
        self.points.append(self.total / self.gathered)
        self.gathered, self.total = 0, 0.0
        if len(self.points) > CURVE_POINTS:
            if len(self.points) % 2:  # the odd one waits for its partner
                self.total, self.gathered = self.points.pop() * self.stride, self.stride
            pairs = zip(self.points[::2], self.points[1::2], strict=True)
            self.points = [(first + second) / 2 for first, second in pairs]
            self.stride *= 2


@dataclass(slots=True)
class Summary:
    """The state behind a `RunSummary`: what must survive a restart, and the speed as this process saw it."""

    task: str = ""
    events: int = 0
    step: int = 0
    total_steps: int | None = None
    episodes: int = 0
    total_episodes: int | None = None
    steps_per_s: float = 0.0
    return_last: float | None = None
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_EPISODES))
    curve: Curve = field(default_factory=Curve)
    scalars: dict[str, float] = field(default_factory=dict)
    malformed: int = 0
    last_event_at: float | None = None
    last_heartbeat_at: float | None = None
    checkpoint: str | None = None
    outcome: str | None = None
    _rated: tuple[float, int] | None = None  # when the speed was last measured, and at which step

    # ── following the journal ───────────────────────────────────────────────────────────────────

    def add(self, journal: Journal) -> None:
        """Take in the lines of one batch: plain steps all at once, other events one by one."""
        self.events += len(journal.kinds)
        if journal.top_step is not None and journal.top_step > self.step:
            self.step = journal.top_step
        for event in journal.events:
            self._add_event(event, journal)
        if (last := next((each for each in reversed(journal.times) if each is not None), None)) is not None:
            self.last_event_at = last if math.isfinite(last) else None

    def _add_event(self, event: Event, journal: Journal) -> None:
        fields = event.fields
        match event.kind:
            case "episode":
                self.episodes += 1
                self._add_return(journal.values[event.place])
            case "scalars":
                self._add_scalars(fields.get("values"))
            case "heartbeat":
                self.last_heartbeat_at = event.ts
            case "run_started":
                self.task = text(fields.get("task") or fields.get("env_id"))
                self.total_steps = _count(fields.get("total_steps"))
                self.total_episodes = _count(fields.get("total_episodes"))
            case "checkpoint_saved":
                self.checkpoint = text(fields.get("path")) or None
            case kind if kind in _OUTCOMES:
                self.outcome = kind
            case kind if kind == MALFORMED:
                self.malformed += 1

    def _add_scalars(self, values: object) -> None:
        """Keep the newest value of each scalar."""
        if isinstance(values, dict):
            for name, value in values.items():
                known = number(value)
                if known is not None and (name in self.scalars or len(self.scalars) < SCALARS):
                    self.scalars[text(name)] = known

    def _add_return(self, value: float | None) -> None:
        if value is None or not math.isfinite(value):
            self.return_last = None
            return
        self.return_last = float(value)
        self.recent.append(self.return_last)
        self.curve.add(self.return_last)

    # ── speed ───────────────────────────────────────────────────────────────────────────────────

    def rate(self, now: float) -> bool:
        """Measure the speed by the receiver's clock, since clocks of workers jump; True if it changed."""
        if self._rated is None:
            self._rated = (now, self.step)
            return False
        since, step = self._rated
        elapsed = now - since
        if elapsed < _RATE_EVERY_S:
            return False
        speed = max(0, self.step - step) / elapsed
        weight = 1 - math.exp(-elapsed / _RATE_MEMORY_S) if self.steps_per_s else 1.0
        before, self.steps_per_s = self.steps_per_s, self.steps_per_s + weight * (speed - self.steps_per_s)
        if self.steps_per_s < 0.01:  # noqa: PLR2004 - a speed nobody can see
            self.steps_per_s = 0.0
        self._rated = (now, self.step)
        return self.steps_per_s != before

    # ── out and in ──────────────────────────────────────────────────────────────────────────────

    def message(self, run: str, attempt: int, **stream: Any) -> RunSummary:
        """Make the body that is published; `stream` holds the counts of the journal's stream."""
        mean, spread = _mean_and_spread(self.recent)
        return RunSummary(
            run=run,
            attempt=attempt,
            task=self.task,
            events=self.events,
            step=self.step,
            total_steps=self.total_steps,
            episodes=self.episodes,
            total_episodes=self.total_episodes,
            steps_per_s=round(self.steps_per_s, 2),
            return_last=self.return_last,
            return_mean=mean,
            return_std=spread,
            returns=list(self.curve.points),
            scalars=dict(self.scalars),
            malformed=self.malformed,
            last_event_at=self.last_event_at,
            last_heartbeat_at=self.last_heartbeat_at,
            checkpoint=self.checkpoint,
            outcome=self.outcome,
            **stream,
        )

    def copy(self) -> Summary:
        """Return a second one that can be changed without changing this one."""
        curve = replace(self.curve, points=self.curve.points.copy())
        return replace(self, recent=self.recent.copy(), curve=curve, scalars=self.scalars.copy())

    def dump(self) -> bytes:
        """Write the state as JSON; it is saved with every commit, so quickly."""
        state = {name: getattr(self, name) for name in self.__slots__ if not name.startswith("_")}
        curve = {name: getattr(self.curve, name) for name in self.curve.__slots__}
        state |= {"recent": list(self.recent), "curve": curve}
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
        fields["recent"] = deque(fields["recent"], maxlen=RECENT_EPISODES)
        return cls(**{**fields, "curve": Curve(**fields["curve"])})


def _mean_and_spread(values: deque[float]) -> tuple[float | None, float | None]:
    """Mean and standard deviation; `statistics.pstdev` is exact and a hundred times slower."""
    if not values:
        return None, None
    mean = sum(values) / len(values)
    if not math.isfinite(mean):
        return None, None
    spread = math.sqrt(sum((each - mean) * (each - mean) for each in values) / len(values))
    return mean, spread if math.isfinite(spread) else None


def _count(value: object) -> int | None:
    return value if type(value) is int and 0 <= value < 2**63 else None
