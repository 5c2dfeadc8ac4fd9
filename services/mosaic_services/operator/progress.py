"""What is kept of an experiment while it is played: its shards, and what was decided. Stored in state.json."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from mosaic_bus.messages import ExperimentStateName
from mosaic_services.experiments.shards import Slice

__all__ = ["Progress", "Shard"]


class Shard(BaseModel):
    """One run that plays slices of an experiment."""

    model_config = ConfigDict(validate_assignment=False)

    run: str
    number: int
    play: list[tuple[str, int, int]]
    # How often in a row the same episodes were lost without a single new record.
    fruitless: int = 0
    acknowledged: bool = False
    # It has ended, and all its records are here.
    settled: bool = False
    attempt: int = 0
    position: int = 0
    done: int = 0
    state: str = "submitting"
    host: str | None = None
    reason: str = ""

    @property
    def slices(self) -> list[Slice]:
        """What it plays."""
        return [Slice(*each) for each in self.play]

    @property
    def total(self) -> int:
        """How many episodes it plays."""
        return sum(last - first for _, first, last in self.play)


class Progress(BaseModel):
    """Everything that a restarted service must know."""

    state: ExperimentStateName = ExperimentStateName.RUNNING
    reason: str = ""
    # Lineups of this start, and how many episodes of each are wanted now.
    wanted: dict[str, int] = Field(default_factory=dict)
    given_up: dict[str, str] = Field(default_factory=dict)
    shards: list[Shard] = Field(default_factory=list)
    at_once: int = 1
    requires: list[str] = Field(default_factory=list)
    # Of an exact experiment: hosts whose records were taken, and those that compute other numbers, with which.
    trusted: list[str] = Field(default_factory=list)
    excluded: dict[str, str] = Field(default_factory=dict)
    lost: int = 0
    conflicts: int = 0
    look: str = ""
    notes: list[str] = Field(default_factory=list)
    looks: list[str] = Field(default_factory=list)
    started_at: float = 0.0
    ended_at: float | None = None
