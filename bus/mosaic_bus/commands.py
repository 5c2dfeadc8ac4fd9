"""The commands that services answer, with their results. One class per command, grouped by service."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar

from pydantic import ConfigDict, Field
from ulid import ULID

from mosaic_bus.messages import HostState, Model, RunSpec, RunState, RunSummary, ServiceState, StreamKind

__all__ = [
    "Ack",
    "Cancel",
    "Command",
    "Decision",
    "Describe",
    "Description",
    "Detach",
    "Episodes",
    "Events",
    "Forget",
    "HostList",
    "Hosts",
    "Info",
    "InfoResult",
    "Logs",
    "Metrics",
    "MetricsResult",
    "Ping",
    "Place",
    "Resend",
    "Rows",
    "RunDetail",
    "RunList",
    "Runs",
    "Series",
    "SeriesResult",
    "Show",
    "Snapshot",
    "SnapshotResult",
    "Stats",
    "Stop",
    "StreamCounters",
    "Streams",
    "StreamsResult",
    "Submit",
    "Submitted",
    "Summaries",
    "SummariesResult",
]

Result = TypeVar("Result", bound=Model)


class Command(Model, Generic[Result]):
    """Base of all commands: `name` on the wire, and the class of the result."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]
    result: ClassVar[type[Model]]


class Ack(Model):
    """Done; there is nothing more to say."""

    note: str = ""


# ── every service ────────────────────────────────────────────────────────────────────────────────────


class Ping(Command[Ack]):
    """Ask whether the service is there."""

    name: ClassVar[str] = "ping"
    result: ClassVar[type[Model]] = Ack


class InfoResult(Model):
    """What a service is."""

    service: str
    pid: int
    epoch: int
    started_at: float
    protocol: int
    version: str
    commands: list[str]
    details: dict[str, Any] = Field(default_factory=dict)


class Info(Command[InfoResult]):
    """Ask who the service is, since when, and which commands it answers."""

    name: ClassVar[str] = "info"
    result: ClassVar[type[Model]] = InfoResult


class Stats(Command[ServiceState]):
    """Counters: received, published, dropped, repaired, lag and whatever else the service counts."""

    name: ClassVar[str] = "stats"
    result: ClassVar[type[Model]] = ServiceState


# ── scheduler ────────────────────────────────────────────────────────────────────────────────────────


class Submitted(Model):
    """A run was stored and queued."""

    run: str
    name: str
    warnings: list[str] = Field(default_factory=list)


class Submit(Command[Submitted]):
    """Queue a run. `run` makes it idempotent: the same id twice is one run, equal specs with two ids are two.

    Refused with `unknown_worker`, `unknown_profile`, `invalid_config`, `impossible_resources`, `id_reused` (the same id
    with another spec), `store_unavailable` (the scheduler's disk is full: try again).
    """

    name: ClassVar[str] = "submit"
    result: ClassVar[type[Model]] = Submitted
    run: str = Field(default_factory=lambda: str(ULID()), pattern="^[0-9A-HJKMNP-TV-Z]{26}$", description="a new ULID")
    spec: RunSpec


class Cancel(Command[Ack]):
    """Stop a run, or take it out of the queue. Refused with `unknown_run`, `ambiguous_run`, `already_final`."""

    name: ClassVar[str] = "cancel"
    result: ClassVar[type[Model]] = Ack
    run: str = Field(description="id or any unique part of it, or the run's name")
    reason: str = "cancelled by user"


class RunList(Model):
    """Runs, newest first."""

    runs: list[RunState]
    total: int = Field(description="how many match, beyond the limit too")


class Runs(Command[RunList]):
    """List runs, newest first."""

    name: ClassVar[str] = "runs"
    result: ClassVar[type[Model]] = RunList
    states: list[str] = Field(default_factory=list, description="only these states; empty for all")
    limit: int = Field(default=100, ge=1, le=100_000)


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


class Show(Command[RunDetail]):
    """Everything the scheduler knows about one run. Refused with `unknown_run`, `ambiguous_run`."""

    name: ClassVar[str] = "show"
    result: ClassVar[type[Model]] = RunDetail
    run: str


class HostList(Model):
    """Hosts that have reported."""

    hosts: list[HostState]
    silent_s: dict[str, float] = Field(description="seconds since each host's last report")


class Hosts(Command[HostList]):
    """List hosts."""

    name: ClassVar[str] = "hosts"
    result: ClassVar[type[Model]] = HostList


class SnapshotResult(Model):
    """All that a late joiner needs to follow from here."""

    runs: list[RunState]
    hosts: list[HostState]


class Snapshot(Command[SnapshotResult]):
    """Runs that are not final plus the newest final ones, and all hosts."""

    name: ClassVar[str] = "snapshot"
    result: ClassVar[type[Model]] = SnapshotResult
    final_limit: int = Field(default=50, ge=0, le=10_000)


# ── supervisor ───────────────────────────────────────────────────────────────────────────────────────


class Place(Command[Ack]):
    """Start an attempt on this host; the same (run, attempt) twice is one attempt.

    Refused with `unknown_worker`, `unknown_profile`, `unusable_environment`, `invalid_arguments`, `already_ended`.
    """

    name: ClassVar[str] = "place"
    result: ClassVar[type[Model]] = Ack
    run: str
    attempt: int
    run_name: str
    spec: RunSpec


class Stop(Command[Ack]):
    """SIGTERM an attempt, SIGKILL it after its grace period. An attempt that is not here counts as stopped."""

    name: ClassVar[str] = "stop"
    result: ClassVar[type[Model]] = Ack
    run: str
    attempt: int
    reason: str


class Forget(Command[Ack]):
    """The scheduler has recorded how this attempt ended; no need to report it any more."""

    name: ClassVar[str] = "forget"
    result: ClassVar[type[Model]] = Ack
    run: str
    attempt: int


class Resend(Command[Ack]):
    """Publish a stream again on `repair.<run>.`, from a position. Refused with `unknown_stream`."""

    name: ClassVar[str] = "resend"
    result: ClassVar[type[Model]] = Ack
    run: str
    attempt: int
    kind: StreamKind
    number: int = Field(ge=0)
    offset: int = Field(ge=0)


class Description(Model):
    """What an installed worker says of itself."""

    worker: str
    profile: str
    status: str
    metadata: dict[str, Any]
    capabilities: dict[str, Any]
    config_schema: dict[str, Any]
    example_config: dict[str, Any]


class Describe(Command[Description]):
    """Describe an installed worker. Refused with `unknown_worker`, `unknown_profile`, `not_installed`."""

    name: ClassVar[str] = "describe"
    result: ClassVar[type[Model]] = Description
    worker: str = Field(pattern=r"^[a-z0-9_-]+$")
    profile: str = "default"


class Detach(Command[Ack]):
    """When you are told to end, leave the runs going; the next supervisor adopts them."""

    name: ClassVar[str] = "detach"
    result: ClassVar[type[Model]] = Ack


# ── telemetry ────────────────────────────────────────────────────────────────────────────────────────


class SummariesResult(Model):
    """Live aggregates."""

    summaries: list[RunSummary]


class Summaries(Command[SummariesResult]):
    """Aggregates of the given runs, or of those that changed last."""

    name: ClassVar[str] = "summaries"
    result: ClassVar[type[Model]] = SummariesResult
    runs: list[str] = Field(default_factory=list)
    limit: int = Field(default=200, ge=1, le=10_000)


class MetricsResult(Model):
    """Names of series a run has, with how many points each."""

    metrics: dict[str, int]


class Metrics(Command[MetricsResult]):
    """Which series does a run have? Refused with `unknown_run`."""

    name: ClassVar[str] = "metrics"
    result: ClassVar[type[Model]] = MetricsResult
    run: str


class SeriesResult(Model):
    """One series, thinned to at most the points asked for; each point is the mean of its bucket."""

    metric: str
    steps: list[int]
    values: list[float | None]
    lows: list[float | None]
    highs: list[float | None]
    times: list[float | None]
    points: int = Field(description="how many there are before thinning")


class Series(Command[SeriesResult]):
    """A series of a run: `episode_return`, `episode_length`, `reward`, or the name of a scalar."""

    name: ClassVar[str] = "series"
    result: ClassVar[type[Model]] = SeriesResult
    run: str
    metric: str
    attempt: int | None = Field(default=None, description="None joins all attempts")
    max_points: int = Field(default=500, ge=2, le=100_000)
    first_step: int | None = None
    last_step: int | None = None


class Rows(Model):
    """A page of rows; `next` is where the next page starts, None at the end of what is stored."""

    rows: list[dict[str, Any]]
    next: int | None = None


class Episodes(Command[Rows]):
    """Episodes of a run in order: number, step, ts, episode, return, length, seed, agent."""

    name: ClassVar[str] = "episodes"
    result: ClassVar[type[Model]] = Rows
    run: str
    attempt: int | None = None
    start: int = Field(default=0, ge=0)
    limit: int = Field(default=1000, ge=1, le=100_000)


class Events(Command[Rows]):
    """Raw events of one attempt in order of number: {number, event, ts, step, value, line}."""

    name: ClassVar[str] = "events"
    result: ClassVar[type[Model]] = Rows
    run: str
    attempt: int = 1
    kinds: list[str] = Field(default_factory=list)
    start: int = Field(default=0, ge=0)
    limit: int = Field(default=1000, ge=1, le=100_000)


class Logs(Command[Rows]):
    """Log lines of one attempt ({number, line}): a page from `start`, or the last `tail` lines."""

    name: ClassVar[str] = "logs"
    result: ClassVar[type[Model]] = Rows
    run: str
    attempt: int | None = Field(default=None, description="None for the newest")
    start: int = Field(default=0, ge=0)
    limit: int = Field(default=1000, ge=1, le=100_000)
    tail: int | None = Field(default=None, ge=1, le=100_000)


class StreamCounters(Model):
    """What happened to one stream on its way into the store."""

    run: str
    attempt: int
    kind: StreamKind
    host: str
    stored: int
    received: int
    repaired: int
    missing: int
    malformed: int
    final: bool


class StreamsResult(Model):
    """Counters of streams."""

    streams: list[StreamCounters]


class Streams(Command[StreamsResult]):
    """Counters of the streams of a run, or of all streams that are not yet complete."""

    name: ClassVar[str] = "streams"
    result: ClassVar[type[Model]] = StreamsResult
    run: str | None = None
