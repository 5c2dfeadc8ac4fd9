"""What the state machine of an experiment wants done, in order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mosaic_bus.messages import RunSpec

__all__ = ["Append", "Cancel", "Collect", "Finish", "Instruction", "Save", "Submit"]


@dataclass(frozen=True, slots=True)
class Instruction:
    """Base of all instructions. The shell appends and saves before it carries out what follows."""


@dataclass(frozen=True, slots=True)
class Append(Instruction):
    """Add lines to episodes.jsonl."""

    lines: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Save(Instruction):
    """Write state.json."""


@dataclass(frozen=True, slots=True)
class Submit(Instruction):
    """Queue a shard. It may be sent again: its id makes it one run."""

    run: str
    spec: RunSpec


@dataclass(frozen=True, slots=True)
class Cancel(Instruction):
    """Stop a shard."""

    run: str
    reason: str


@dataclass(frozen=True, slots=True)
class Collect(Instruction):
    """Ask telemetry for the records of a shard; `whole` if all of them are stored."""

    run: str
    attempt: int
    start: int
    whole: bool


@dataclass(frozen=True, slots=True)
class Finish(Instruction):
    """Sort episodes.jsonl and complete experiment.json."""
