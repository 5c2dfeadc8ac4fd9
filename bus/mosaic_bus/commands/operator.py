"""The commands that the operator service answers."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator
from ulid import ULID

from mosaic_bus.commands.common import Ack, Command, Query
from mosaic_bus.commands.scheduler import RUN_ID, DeleteResult
from mosaic_bus.messages import ExperimentState, Model, Whole
from mosaic_bus.refusals import Problem

__all__ = [
    "CheckExperiment",
    "CloseSession",
    "DeleteExperiment",
    "DeletedExperiment",
    "ExperimentCheck",
    "ExperimentList",
    "ExperimentName",
    "ExperimentPlan",
    "Experiments",
    "OpenSession",
    "PlanExperiment",
    "Session",
    "SessionList",
    "SessionView",
    "Sessions",
    "ShowExperiment",
    "ShowSession",
    "StartExperiment",
    "StopExperiment",
    "TellSession",
    "WriteReport",
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
    experiment: dict[str, Any] = Field(default_factory=dict, description="the fields of an experiment file")
    text: str = Field(default="", max_length=1_000_000, description="or the file itself, YAML or JSON")
    shards: Annotated[Whole, Field(ge=1, le=1000)] | None = Field(
        default=None, description="pieces that run at the same time; made from the hosts' CPUs if left out"
    )
    hosts: list[str] = Field(default_factory=list, max_length=1000, description="only on these; empty for all")
    restart: bool = Field(default=False, description="drop the records that there are, and play everything again")
    command: str = Field(default="", max_length=1000, description="how to run it again, for the report")

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if bool(self.experiment) == bool(self.text):
            raise ValueError("give either `experiment` or `text`")
        return self


class StopExperiment(Command[Ack]):
    """Stop an experiment; its records stay. Refused with `unknown_experiment`, `already_final`."""

    name: ClassVar[str] = "stop_experiment"
    result: ClassVar[type[Model]] = Ack
    experiment: ExperimentName
    reason: str = Field(default="stopped by a user", max_length=200)


class DeletedExperiment(Model):
    """An experiment that was deleted, or would be, with its runs."""

    experiment: str
    deleted: bool = Field(description="false if it is kept since some of its runs are, or with `dry_run`")
    episodes: int
    bytes: Whole = Field(description="of its folder, without its runs")
    runs: DeleteResult


class DeleteExperiment(Command[DeletedExperiment]):
    """Delete an experiment that is not being played: its records, its report and videos, and the runs of its shards.

    If a run has to be kept, so is the experiment. Refused with `unknown_experiment`, `not_final`.
    """

    name: ClassVar[str] = "delete_experiment"
    result: ClassVar[type[Model]] = DeletedExperiment
    experiment: ExperimentName
    keep_runs: bool = Field(default=False, description="leave the runs of its shards")
    dry_run: bool = Field(default=False, description="only say what would be deleted")


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


class ExperimentCheck(Model):
    """What `start_experiment` would say about the text of an experiment file."""

    ok: bool
    experiment: dict[str, Any] = Field(default_factory=dict, description="the fields of the file")
    plan: ExperimentPlan | None = None
    problems: list[Problem] = Field(default_factory=list)


class CheckExperiment(Query[ExperimentCheck]):
    """Check the text of an experiment file without starting it. What is wrong is an answer, and no refusal."""

    name: ClassVar[str] = "check_experiment"
    result: ClassVar[type[Model]] = ExperimentCheck
    text: str = Field(max_length=1_000_000, description="YAML or JSON")


class WriteReport(Command[Ack]):
    """Write the report of an experiment anew, into `report/` of its folder.

    Answered after 20 seconds at the latest: `note` is the path of its first page, or says that it is being written.
    Refused with `unknown_experiment`, and with `not_final` if there is nothing to report yet.
    """

    name: ClassVar[str] = "write_report"
    result: ClassVar[type[Model]] = Ack
    experiment: ExperimentName


class Session(Model):
    """A session: an interactive run of the arena in which each lineup plays on a board of its own."""

    session: str = Field(description="the id of its run; what happens on its boards comes as `reply` events of it")
    name: str
    state: str = Field(description="state of the run")
    boards: dict[str, dict[str, str]] = Field(default_factory=dict, description="lineup -> agent -> operator")


class OpenSession(Command[Session]):
    """Start a session: up to eight boards side by side, played command by command, also by people.

    Refused with `invalid_experiment`, `unknown_run`, `missing_checkpoint`, and as `submit` is.
    """

    name: ClassVar[str] = "open_session"
    result: ClassVar[type[Model]] = Session
    run: str = Field(default_factory=lambda: str(ULID()), pattern=RUN_ID, description="makes it idempotent")
    experiment: dict[str, Any] = Field(description="the fields of an experiment file; episodes and shards do not count")
    frames: Literal["single", "grid", "off"] = Field(
        default="off", description="live frames: a stream for each board (single), one of all boards (grid), or none"
    )


class SessionView(Session):
    """What has happened on the boards of a session."""

    reason: str = ""
    host: str | None = None
    latest: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="the last reply of type `board` of each board, of those that were read"
    )
    ready: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="the reply `ready` of each board, of those that were read"
    )
    replies: list[dict[str, Any]] = Field(default_factory=list, description="every reply since `start`, in order")
    next: Whole = Field(default=0, description="the `start` to ask with next time")


class ShowSession(Query[SessionView]):
    """What has happened in a session since the last time.

    Without `start`: `latest` and `ready` of each board from the whole session, and no `replies`. With the `next` of the
    last answer as `start`: what is new. Refused with `unknown_run`.
    """

    name: ClassVar[str] = "show_session"
    result: ClassVar[type[Model]] = SessionView
    session: str
    start: Annotated[Whole, Field(ge=0)] | None = None


class TellSession(Command[Ack]):
    """Send a command to the boards of a session: `reset`, `step`, `play`, `pause`, `human_input`, `boards`, `stop`.

    Refused with `unknown_run`, `not_started`, `already_ended`, `not_reading`.
    """

    name: ClassVar[str] = "tell_session"
    result: ClassVar[type[Model]] = Ack
    session: str = Field(description="id or any unique part of it, or the name of the session")
    request: dict[str, Any] = Field(description="as in manual mode of the arena, with `cmd` and `id`")


class CloseSession(Command[Ack]):
    """End a session. Refused with `unknown_run`, `already_final`."""

    name: ClassVar[str] = "close_session"
    result: ClassVar[type[Model]] = Ack
    session: str


class SessionList(Model):
    """Sessions that are open, newest first."""

    sessions: list[Session]


class Sessions(Query[SessionList]):
    """List the sessions that are open."""

    name: ClassVar[str] = "sessions"
    result: ClassVar[type[Model]] = SessionList
