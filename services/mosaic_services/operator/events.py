"""What happens to an experiment, as its state machine sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mosaic_bus.messages import RunState, RunSummary

__all__ = ["Acknowledged", "Collected", "Event", "Refused", "RunSeen", "StopAsked", "Tick"]


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events; `now` is the wall clock."""

    now: float


@dataclass(frozen=True, slots=True)
class Acknowledged(Event):
    """The scheduler has a shard."""

    run: str


@dataclass(frozen=True, slots=True)
class Refused(Event):
    """The scheduler has refused a shard for good."""

    run: str
    reason: str


@dataclass(frozen=True, slots=True)
class RunSeen(Event):
    """The state or the summary of a shard has changed."""

    state: RunState
    summary: RunSummary | None


@dataclass(frozen=True, slots=True)
class Collected(Event):
    """Lines of `episode` events of a shard, and the number of the event to continue from."""

    run: str
    attempt: int
    lines: tuple[str, ...]
    position: int
    # Everything that the attempt wrote was there to be read.
    whole: bool


@dataclass(frozen=True, slots=True)
class StopAsked(Event):
    """A user wants it to stop."""

    reason: str


@dataclass(frozen=True, slots=True)
class Tick(Event):
    """Some time has passed."""
