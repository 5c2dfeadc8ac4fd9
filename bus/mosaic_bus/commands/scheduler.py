"""The commands that the scheduler answers."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import ConfigDict, Field
from ulid import ULID

from mosaic_bus.commands.common import Ack, Command, Query
from mosaic_bus.messages import HostState, Model, Number, RunSpec, RunState, Whole

__all__ = [
    "Cancel",
    "CancelGroup",
    "Check",
    "CheckResult",
    "Decision",
    "Delete",
    "DeleteResult",
    "DeletedRun",
    "Drain",
    "GroupList",
    "GroupState",
    "Groups",
    "HostList",
    "Hosts",
    "KeptRun",
    "NewRun",
    "PauseQueue",
    "Prioritise",
    "Rerun",
    "RunDetail",
    "RunList",
    "Runs",
    "Show",
    "Snapshot",
    "SnapshotResult",
    "Submit",
    "SubmitMany",
    "Submitted",
    "SubmittedMany",
    "Why",
    "WhyResult",
]

RUN_ID = "^[0-9A-HJKMNP-TV-Z]{26}$"


class Submitted(Model):
    """A run was stored and queued."""

    run: str
    name: str
    warnings: list[str] = Field(default_factory=list)


class Submit(Command[Submitted]):
    """Queue a run. `run` makes it idempotent: the same id twice is one run, equal specs with two ids are two.

    Refused with `unknown_worker`, `unknown_profile`, `invalid_config`, `impossible_resources` and `unknown_tag` (unless
    the spec says `wait_for_host`), `unknown_run` (of `after` or `replaces`), `after_failed`, `circular_after`,
    `id_reused` (the same id with another spec), `store_unavailable` (the scheduler's disk is full: try again).
    """

    name: ClassVar[str] = "submit"
    result: ClassVar[type[Model]] = Submitted
    run: str = Field(default_factory=lambda: str(ULID()), pattern=RUN_ID, description="a new ULID")
    spec: RunSpec


class NewRun(Model):
    """One run of a `submit_many`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    run: str = Field(default_factory=lambda: str(ULID()), pattern=RUN_ID, description="a new ULID")
    spec: RunSpec


class SubmittedMany(Model):
    """Runs that were stored and queued, in the order in which they were given."""

    runs: list[Submitted]


class SubmitMany(Command[SubmittedMany]):
    """Queue many runs, all or none. `after` may name runs of the same command.

    Refused as `submit` is; `index` in the details says which run is wrong.
    """

    name: ClassVar[str] = "submit_many"
    result: ClassVar[type[Model]] = SubmittedMany
    runs: list[NewRun] = Field(min_length=1, max_length=10_000)


class CheckResult(Model):
    """What `submit` would say."""

    ok: bool
    run_name: str = Field(default="", description="the name that the run would have")
    code: str = Field(default="", description="the code of the refusal")
    problems: list[dict[str, Any]] = Field(
        default_factory=list, description="{field, message, value, near} of each field that is wrong"
    )
    warnings: list[str] = Field(default_factory=list)


class Check(Query[CheckResult]):
    """Check a run without submitting it. What is wrong is an answer, in the words of `submit`, and no refusal."""

    name: ClassVar[str] = "check"
    result: ClassVar[type[Model]] = CheckResult
    spec: dict[str, Any] = Field(description="as in `submit`, but it may be incomplete")


class Rerun(Command[SubmittedMany]):
    """Submit runs again, as new ones with the same spec; of a group, those that failed or were lost.

    Refused with `unknown_run`, `ambiguous_run`, `unknown_group`, `not_final`, `nothing_to_rerun`.
    """

    name: ClassVar[str] = "rerun"
    result: ClassVar[type[Model]] = SubmittedMany
    request: str = Field(default_factory=lambda: str(ULID()), pattern=RUN_ID, description="makes it idempotent")
    run: str = Field(default="", description="id or any unique part of it, or the run's name")
    group: str = Field(default="", description="or a group")


class Cancel(Command[Ack]):
    """Stop a run, or remove it from the queue. Refused with `unknown_run`, `ambiguous_run`, `already_final`."""

    name: ClassVar[str] = "cancel"
    result: ClassVar[type[Model]] = Ack
    run: str = Field(description="id or any unique part of it, or the run's name")
    reason: str = "cancelled by user"


class DeletedRun(Model):
    """A run that was deleted, or would be."""

    run: str
    name: str
    state: str
    ended_at: float | None = None
    bytes: Whole = Field(default=0, description="of its files and of its events; what a silent host has is not counted")


class KeptRun(Model):
    """A run that was not deleted, and why."""

    run: str
    name: str
    reason: str


class DeleteResult(Model):
    """What was deleted, or would be."""

    deleted: list[DeletedRun]
    kept: list[KeptRun] = Field(default_factory=list)


class Delete(Command[DeleteResult]):
    """Delete runs that have ended, with their files and events: those named, or all that ended long enough ago.

    A run that another one waits for is kept, and so is one whose host does not answer. Refused with `unknown_run`,
    `ambiguous_run`, `unknown_group`, `not_final` (of a run that is named).
    """

    name: ClassVar[str] = "delete"
    result: ClassVar[type[Model]] = DeleteResult
    runs: list[str] = Field(
        default_factory=list, max_length=1000, description="ids, unique parts of ids, or names; else the rest selects"
    )
    older_than_s: Number | None = Field(default=None, ge=0, description="all runs that ended so long ago")
    states: list[str] = Field(default_factory=list, description="of these, only the ones with such an end")
    group: str = Field(default="", description="of these, only the ones of this group")
    dry_run: bool = Field(default=False, description="only say what would be deleted")
    without_host: bool = Field(default=False, description="also if a host with files of the run does not answer")


class Prioritise(Command[Ack]):
    """Change the priority of a waiting run, or of all waiting runs of a group.

    Refused with `unknown_run`, `ambiguous_run`, `unknown_group`, `already_placed`.
    """

    name: ClassVar[str] = "prioritise"
    result: ClassVar[type[Model]] = Ack
    run: str = ""
    group: str = ""
    priority: Whole = Field(ge=-1000, le=1000)


class CancelGroup(Command[Ack]):
    """Stop all runs of a group. Refused with `unknown_group`, `already_final`."""

    name: ClassVar[str] = "cancel_group"
    result: ClassVar[type[Model]] = Ack
    group: str = Field(description="its name, or any unique part of it")
    reason: str = "cancelled by user"


class GroupState(Model):
    """Progress of a group; a repeated run counts by its repetition."""

    group: str
    total: int
    counts: dict[str, int] = Field(description="state -> how many")
    submitted_at: float
    ended_at: float | None = Field(default=None, description="when its last run ended, once all have")


class GroupList(Model):
    """Groups, newest first."""

    groups: list[GroupState]


class Groups(Query[GroupList]):
    """List groups, newest first, or show one. Refused with `unknown_group`."""

    name: ClassVar[str] = "groups"
    result: ClassVar[type[Model]] = GroupList
    group: str = Field(default="", description="its name, or any unique part of it; empty for all")
    limit: Whole = Field(default=100, ge=1, le=10_000)


class PauseQueue(Command[Ack]):
    """Pause the queue, so that nothing more is placed, or resume it. Running runs continue."""

    name: ClassVar[str] = "pause_queue"
    result: ClassVar[type[Model]] = Ack
    paused: bool
    reason: str = Field(default="by a user", max_length=200)


class Drain(Command[Ack]):
    """Place nothing more on a host, or undo that. Its running runs continue. Refused with `unknown_host`."""

    name: ClassVar[str] = "drain"
    result: ClassVar[type[Model]] = Ack
    host: str
    drained: bool
    reason: str = Field(default="by a user", max_length=200)


class RunList(Model):
    """Runs, newest first; runs that were asked for by name in the order of the names."""

    runs: list[RunState]
    total: Whole = Field(description="number of matching runs, including those beyond the limit")
    counts: dict[str, int] = Field(
        default_factory=dict, description="state -> number of matching runs, regardless of `states` and `limit`"
    )
    shared: dict[str, int] = Field(
        default_factory=dict, description="name that was asked for and that several runs have -> how many"
    )


class Runs(Query[RunList]):
    """List runs, or find runs by name.

    Refused with `unknown_run`, `ambiguous_run` (of `runs`), `unknown_group`.
    """

    name: ClassVar[str] = "runs"
    result: ClassVar[type[Model]] = RunList
    runs: list[str] = Field(
        default_factory=list,
        max_length=10_000,
        description="only these: ids, unique parts of ids, or names; a name that several runs share means the newest",
    )
    active: bool = Field(
        default=False, description="a name in `runs` means the only run that has not ended, if there is one"
    )
    states: list[str] = Field(default_factory=list, description="only these states; empty for all")
    group: str = Field(default="", description="only runs of this group")
    limit: Whole = Field(default=100, ge=1, le=100_000)


class Decision(Model):
    """One thing the scheduler decided about a run, and why."""

    at: float
    event: str
    reason: str


class RunDetail(Model):
    """A run with its history."""

    run: RunState
    spec: RunSpec
    attempts: list[dict[str, Any]]
    decisions: list[Decision]


class Show(Query[RunDetail]):
    """Everything the scheduler knows about one run. Refused with `unknown_run`, `ambiguous_run`."""

    name: ClassVar[str] = "show"
    result: ClassVar[type[Model]] = RunDetail
    run: str


class WhyResult(Model):
    """Why a run is as it is, from recorded decisions."""

    run: RunState
    answer: str = Field(description="one sentence")
    facts: list[str] = Field(description="the facts behind the answer, most important first")
    position: Whole | None = Field(default=None, description="place in the queue, from 1, while it waits")
    log: list[str] = Field(default_factory=list, description="end of the log of its last attempt that failed")
    decisions: list[Decision] = Field(description="the newest last")


class Why(Query[WhyResult]):
    """Why is a run pending, here, stopped, retried or failed? Refused with `unknown_run`, `ambiguous_run`."""

    name: ClassVar[str] = "why"
    result: ClassVar[type[Model]] = WhyResult
    run: str


class HostList(Model):
    """Hosts that have reported."""

    hosts: list[HostState]
    silent_s: dict[str, float] = Field(description="seconds since each host's last report")
    drained: dict[str, str] = Field(default_factory=dict, description="hosts that get nothing new, and why")
    paused: str | None = Field(default=None, description="why the queue is paused, if it is")


class Hosts(Query[HostList]):
    """List hosts."""

    name: ClassVar[str] = "hosts"
    result: ClassVar[type[Model]] = HostList


class SnapshotResult(Model):
    """What a late joiner needs to follow from here."""

    version: Whole = Field(description="of the newest change that it holds; give it as `since` next time")
    runs: list[RunState]
    counts: dict[str, int] = Field(description="state -> how many runs of the selection, changed or not")
    hosts: list[HostState]
    silent_s: dict[str, float] = Field(description="seconds since each host's last report")


class Snapshot(Query[SnapshotResult]):
    """Runs that are not final plus the newest final ones, and all hosts."""

    name: ClassVar[str] = "snapshot"
    result: ClassVar[type[Model]] = SnapshotResult
    runs: list[str] = Field(
        default_factory=list, max_length=100_000, description="only these, by whole id; unknown ones are left out"
    )
    group: str = Field(default="", description="only runs of this group, by its whole name; it may be empty")
    since: Whole = Field(default=0, ge=0, description="only runs that changed after this version")
    final_limit: Whole = Field(default=50, ge=0, le=100_000)
