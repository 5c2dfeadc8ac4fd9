"""What the state machine tells its shell to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mosaic_bus.messages import Model, RunSpec, RunState
    from mosaic_services.scheduler.model import Attempt, Run

__all__ = [
    "Answer",
    "FetchDescription",
    "Instruction",
    "Publish",
    "RecordDecision",
    "Refuse",
    "SaveAttempt",
    "SaveRun",
    "SaveSetting",
    "SendForget",
    "SendPlace",
    "SendStop",
]


@dataclass(frozen=True, slots=True)
class Instruction:
    """Base of all instructions.

    The shell saves first, and only then sends, publishes and answers; a `SendStop` alone need not wait.
    """


@dataclass(frozen=True, slots=True)
class SaveRun(Instruction):
    """Store a run as it is now (the run is a copy)."""

    run: Run


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
class Publish(Instruction):
    """Tell everybody a run's state."""

    state: RunState


@dataclass(frozen=True, slots=True)
class SaveSetting(Instruction):
    """Store what a user has set; an empty value removes it."""

    key: str
    value: str


@dataclass(frozen=True, slots=True)
class SendPlace(Instruction):
    """Ask a host to start an attempt (the attempt is a copy)."""

    placed: Attempt
    name: str
    spec: RunSpec

    @property
    def host(self) -> str:
        """Whom to ask."""
        return self.placed.host

    @property
    def run(self) -> str:
        """Which run."""
        return self.placed.run

    @property
    def attempt(self) -> int:
        """Which of its attempts."""
        return self.placed.number


@dataclass(frozen=True, slots=True)
class SendStop(Instruction):
    """Ask a host to stop an attempt."""

    host: str
    run: str
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class SendForget(Instruction):
    """Tell a host that an attempt's end is recorded."""

    host: str
    run: str
    attempt: int


@dataclass(frozen=True, slots=True)
class FetchDescription(Instruction):
    """Ask a host what an installed worker says of itself."""

    host: str
    worker: str
    profile: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class Answer(Instruction):
    """The result of the command that caused the event, and the runs that it made."""

    result: Model
    new: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Refuse(Instruction):
    """The command that caused the event is refused."""

    code: str
    message: str
    details: dict[str, Any] = field(default_factory=dict)
