"""What the state machine tells its shell to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mosaic_bus.commands import Describe, Forget, Place, Stop
    from mosaic_bus.messages import RunState
    from mosaic_services.scheduler.model import Attempt, Run

__all__ = [
    "DeleteRun",
    "FetchCheckpoints",
    "FetchDescription",
    "Instruction",
    "Publish",
    "RecordDecision",
    "SaveAttempt",
    "SaveRun",
    "SaveSetting",
    "Send",
]


@dataclass(frozen=True, slots=True)
class Instruction:
    """Base of all instructions. The shell saves first, then sends and publishes; only a `Stop` may be sent at once."""


@dataclass(frozen=True, slots=True)
class SaveRun(Instruction):
    """Store a run as it is now (the run is a copy); `new` if it was submitted just now."""

    run: Run
    new: bool = False


@dataclass(frozen=True, slots=True)
class SaveAttempt(Instruction):
    """Store an attempt as it is now (the attempt is a copy)."""

    attempt: Attempt


@dataclass(frozen=True, slots=True)
class RecordDecision(Instruction):
    """Store what was decided about a run, and why; `number` counts a run's decisions from 1."""

    run: str
    number: int
    at: float
    event: str
    reason: str


@dataclass(frozen=True, slots=True)
class DeleteRun(Instruction):
    """Remove everything that is stored of a run."""

    run: str


@dataclass(frozen=True, slots=True)
class Publish(Instruction):
    """Publish a run's state."""

    state: RunState


@dataclass(frozen=True, slots=True)
class SaveSetting(Instruction):
    """Store a user's setting; an empty value removes it."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class Send(Instruction):
    """Send a command to the supervisor of a host."""

    host: str
    command: Place | Stop | Forget


@dataclass(frozen=True, slots=True)
class FetchDescription(Instruction):
    """Ask a host for the description of an installed worker."""

    host: str
    command: Describe
    fingerprint: str


@dataclass(frozen=True, slots=True)
class FetchCheckpoints(Instruction):
    """Ask telemetry which checkpoints a run has saved."""

    run: str
