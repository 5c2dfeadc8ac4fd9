"""What can happen to the scheduler: every stimulus of its state machine is one of these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mosaic_bus.messages import HostState, RunSpec

__all__ = [
    "CancelRequested",
    "DescriptionKnown",
    "DrainRequested",
    "Event",
    "GroupCancelRequested",
    "HostReported",
    "Instant",
    "PauseRequested",
    "PlaceAcknowledged",
    "PlaceRefused",
    "PriorityRequested",
    "RerunRequested",
    "StopAcknowledged",
    "Submitted",
    "SubmittedMany",
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
class Submitted(Event):
    """A client asks for a run; answered with `Answer` or `Refuse`."""

    run: str
    spec: RunSpec


@dataclass(frozen=True, slots=True)
class SubmittedMany(Event):
    """A client asks for many runs, all or none; answered with `Answer` or `Refuse`."""

    runs: tuple[tuple[str, RunSpec], ...]


@dataclass(frozen=True, slots=True)
class RerunRequested(Event):
    """A client asks for a run once more, or for all of a group that failed; answered with `Answer` or `Refuse`."""

    request: str
    run: str
    group: str


@dataclass(frozen=True, slots=True)
class Withdrawn(Event):
    """A run that had just been submitted could not be saved: it never was."""

    run: str


@dataclass(frozen=True, slots=True)
class CancelRequested(Event):
    """A client asks to stop a run, named by id, part of it, or name; answered with `Answer` or `Refuse`."""

    query: str
    reason: str


@dataclass(frozen=True, slots=True)
class GroupCancelRequested(Event):
    """A client asks to stop all runs of a group; answered with `Answer` or `Refuse`."""

    group: str
    reason: str


@dataclass(frozen=True, slots=True)
class PriorityRequested(Event):
    """A client wants a run, or the runs of a group, to have another priority; answered with `Answer` or `Refuse`."""

    query: str
    group: str
    priority: int


@dataclass(frozen=True, slots=True)
class PauseRequested(Event):
    """A client pauses or resumes the queue; answered with `Answer`."""

    paused: bool
    reason: str


@dataclass(frozen=True, slots=True)
class DrainRequested(Event):
    """A client wants a host to get nothing new, or to be used again; answered with `Answer` or `Refuse`."""

    host: str
    drained: bool
    reason: str


@dataclass(frozen=True, slots=True)
class HostReported(Event):
    """A supervisor said how its host is."""

    state: HostState


@dataclass(frozen=True, slots=True)
class PlaceAcknowledged(Event):
    """A host took an attempt."""

    host: str
    run: str
    attempt: int


@dataclass(frozen=True, slots=True)
class PlaceRefused(Event):
    """A host will not take an attempt."""

    host: str
    run: str
    attempt: int
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class StopAcknowledged(Event):
    """A host is stopping an attempt, or does not have it."""

    host: str
    run: str
    attempt: int


@dataclass(frozen=True, slots=True)
class DescriptionKnown(Event):
    """An installed worker has said what configuration it takes."""

    worker: str
    profile: str
    fingerprint: str
    config_schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Tick(Event):
    """Time passed. While `deaf` (the bus is away) the silence of hosts means nothing and is not counted."""

    deaf: bool = False
