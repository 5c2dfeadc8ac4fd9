"""What can happen to the scheduler, other than commands: every stimulus of its state machine is one of these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mosaic_bus.commands import Description, Place, SavedCheckpoint, Stop
    from mosaic_bus.errors import CommandRefusedError
    from mosaic_bus.messages import HostState

__all__ = [
    "Answered",
    "CheckpointsKnown",
    "Deleted",
    "Described",
    "Event",
    "HostReported",
    "Instant",
    "Tick",
    "Withdrawn",
]


@dataclass(frozen=True, slots=True)
class Instant:
    """A moment on both clocks: `mono` for every interval, `wall` only to be shown."""

    mono: float
    wall: float


@dataclass(frozen=True, slots=True)
class Event:
    """Base of all events."""

    at: Instant


@dataclass(frozen=True, slots=True)
class Withdrawn(Event):
    """A newly submitted run could not be saved: it never existed."""

    run: str


@dataclass(frozen=True, slots=True)
class Deleted(Event):
    """The files and events of a run that has ended were removed: forget it."""

    run: str


@dataclass(frozen=True, slots=True)
class HostReported(Event):
    """A supervisor reported the state of its host."""

    state: HostState


@dataclass(frozen=True, slots=True)
class Answered(Event):
    """A host acknowledged a command, or refused it."""

    host: str
    command: Place | Stop
    refusal: CommandRefusedError | None = None


@dataclass(frozen=True, slots=True)
class Described(Event):
    """A host described an installed worker."""

    fingerprint: str
    description: Description


@dataclass(frozen=True, slots=True)
class CheckpointsKnown(Event):
    """Telemetry said which checkpoints a run has saved, or did not answer (`problem`)."""

    run: str
    saved: tuple[SavedCheckpoint, ...] = ()
    # The newest attempt of the run that has ended and whose lines are all stored; 0 if there is none.
    stored: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Tick(Event):
    """Time passed. While `deaf` (the bus is unreachable), the silence of hosts is not counted."""

    deaf: bool = False
