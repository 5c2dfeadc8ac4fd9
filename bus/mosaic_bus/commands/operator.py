"""The commands that the operator service answers."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from mosaic_bus.commands.common import Ack, Command, Query
from mosaic_bus.messages import ExperimentState, Model, Whole

__all__ = [
    "ExperimentList",
    "ExperimentName",
    "ExperimentPlan",
    "Experiments",
    "PlanExperiment",
    "ShowExperiment",
    "StartExperiment",
    "StopExperiment",
]

# Part of topics and of paths.
ExperimentName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class ExperimentPlan(Model):
    """What a start would do."""

    experiment: str
    wanted: int
    done: int
    missing: int
    shards: list[list[tuple[str, int, int]]] = Field(description="slices of each shard: lineup, first, last + 1")
    notes: list[str] = Field(default_factory=list)


class PlanExperiment(Query[ExperimentPlan]):
    """Say what a start would play, without starting it. Refused as `start_experiment` is."""

    name: ClassVar[str] = "plan_experiment"
    result: ClassVar[type[Model]] = ExperimentPlan
    experiment: dict[str, Any] = Field(description="the fields of an experiment file")
    shards: Annotated[Whole, Field(ge=1, le=1000)] | None = None
    hosts: list[str] = Field(default_factory=list, max_length=1000)


class StartExperiment(Command[ExperimentState]):
    """Play what is missing of an experiment: all of it, or what was added or is left since the last time.

    Refused with `invalid_experiment`, `experiment_changed` (records of another experiment have this name),
    `already_running`, `unknown_run` (of a checkpoint), `missing_checkpoint`, `unknown_host`, `store_unavailable`.
    """

    name: ClassVar[str] = "start_experiment"
    result: ClassVar[type[Model]] = ExperimentState
    experiment: dict[str, Any] = Field(description="the fields of an experiment file")
    shards: Annotated[Whole, Field(ge=1, le=1000)] | None = Field(
        default=None, description="pieces that run at the same time; made from the hosts' CPUs if left out"
    )
    hosts: list[str] = Field(default_factory=list, max_length=1000, description="only on these; empty for all")
    restart: bool = Field(default=False, description="drop the records that there are, and play everything again")
    command: str = Field(default="", max_length=1000, description="how to run it again, for the report")


class StopExperiment(Command[Ack]):
    """Stop an experiment; its records stay. Refused with `unknown_experiment`, `already_final`."""

    name: ClassVar[str] = "stop_experiment"
    result: ClassVar[type[Model]] = Ack
    experiment: ExperimentName
    reason: str = Field(default="stopped by a user", max_length=200)


class ShowExperiment(Query[ExperimentState]):
    """The state of one experiment. Refused with `unknown_experiment`."""

    name: ClassVar[str] = "show_experiment"
    result: ClassVar[type[Model]] = ExperimentState
    experiment: ExperimentName


class ExperimentList(Model):
    """Experiments, newest first."""

    experiments: list[ExperimentState]


class Experiments(Query[ExperimentList]):
    """List experiments, newest first, without their shards."""

    name: ClassVar[str] = "experiments"
    result: ClassVar[type[Model]] = ExperimentList
    limit: Whole = Field(default=100, ge=1, le=10_000)
