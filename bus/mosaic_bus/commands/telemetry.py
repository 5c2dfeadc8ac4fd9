"""The commands that the telemetry aggregator answers."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from mosaic_bus.commands.common import Ack, Command, Query
from mosaic_bus.messages import AttemptNumber, Model, RunSummary, StreamKind, Whole

__all__ = [
    "Checkpoints",
    "CheckpointsResult",
    "Curve",
    "Episodes",
    "Events",
    "Logs",
    "Metrics",
    "MetricsResult",
    "RemoveEvents",
    "Rows",
    "RunCurves",
    "SavedCheckpoint",
    "Scalars",
    "Series",
    "SeriesResult",
    "StoredBytes",
    "StoredBytesResult",
    "StreamCounters",
    "Streams",
    "StreamsResult",
    "Summaries",
    "SummariesResult",
]

Step = Annotated[Whole, Field(ge=-(2**63), lt=2**63)]


class SummariesResult(Model):
    """Live aggregates."""

    summaries: list[RunSummary]


class Summaries(Query[SummariesResult]):
    """Aggregates of the given runs, or of those that changed last."""

    name: ClassVar[str] = "summaries"
    result: ClassVar[type[Model]] = SummariesResult
    runs: list[str] = Field(default_factory=list, max_length=10_000)
    limit: Whole = Field(default=200, ge=1, le=10_000)


class MetricsResult(Model):
    """Names of series a run has, with how many points each, and of its agents."""

    metrics: dict[str, int]
    agents: list[str] = Field(default_factory=list, description="empty for a run whose events name no agent")


class Metrics(Query[MetricsResult]):
    """Which series does a run have? Refused with `unknown_run`."""

    name: ClassVar[str] = "metrics"
    result: ClassVar[type[Model]] = MetricsResult
    run: str


class Curve(Model):
    """One series, thinned to at most `max_points` buckets; each keeps the minimum and maximum of its points."""

    metric: str
    steps: list[int]
    values: list[float | None] = Field(description="the mean of each bucket")
    lows: list[float | None]
    highs: list[float | None]
    times: list[float | None]
    counts: list[int] = Field(description="points in each bucket")
    points: Whole = Field(description="how many there are before thinning")
    whole: bool = Field(
        default=True, description="False if the curve holds only the points after `since`; True if it replaces all"
    )


JournalPosition = Annotated[list[Annotated[Whole, Field(ge=0, lt=2**63)]], Field(max_length=10_000)]


class RunCurves(Model):
    """The curves of one run, as stored at one moment."""

    run: str
    position: JournalPosition = Field(
        description="how many lines were stored of the journal of each attempt, the first attempt first"
    )
    since: JournalPosition | None = Field(
        default=None, description="the position after which the curves begin; None for the whole run"
    )
    cut: int | None = Field(
        default=None,
        description="a new attempt has begun since then: drop the points with a higher step before adding these",
    )
    curves: list[Curve]


class SeriesResult(Model):
    """Curves by run, in the order in which they were asked for. Of several runs, those without events are left out."""

    runs: list[RunCurves]

    @property
    def only(self) -> Curve:
        """The curve, if one run and one metric were asked for."""
        [run] = self.runs
        [curve] = run.curves
        return curve


class Series(Query[SeriesResult]):
    """Curves of runs: `episode_return`, `episode_length`, `reward`, or the names of scalars.

    Buckets are stretches of lines of the journal. Their width is a power of two, so a full bucket stays as it is while
    the run goes on. A single run that is not known is refused with `unknown_run`.
    """

    name: ClassVar[str] = "series"
    result: ClassVar[type[Model]] = SeriesResult
    runs: list[str] = Field(min_length=1, max_length=500)
    metrics: list[str] = Field(min_length=1, max_length=100)
    agent: str | None = Field(
        default=None,
        description="None for the team: events without an agent if there are some, or else one point per episode or"
        " step over all agents (sum of returns and rewards, longest length, mean of scalars)",
    )
    attempt: AttemptNumber | None = Field(
        default=None, description="None joins all, without the steps that a later attempt played again"
    )
    max_points: Whole = Field(default=500, ge=2, le=100_000)
    first_step: Step | None = None
    last_step: Step | None = None
    since: dict[str, JournalPosition] = Field(
        default_factory=dict, description="by run, the `position` of an earlier answer: only points after it"
    )


class Rows(Model):
    """A page of rows; `next` is where the next page starts, None at the end of what is stored."""

    rows: list[dict[str, Any]]
    next: int | None = None


class Episodes(Query[Rows]):
    """Episodes of a run in order: number, step, ts, episode, return, length, seed, agent."""

    name: ClassVar[str] = "episodes"
    result: ClassVar[type[Model]] = Rows
    run: str
    agent: str | None = Field(default=None, description="None for the team, as in `series`")
    attempt: AttemptNumber | None = Field(default=None, description="None joins all, as in `series`")
    start: Whole = Field(default=0, ge=0)
    limit: Whole = Field(default=1000, ge=1, le=100_000)


class Scalars(Query[Rows]):
    """The points of one scalar in order, none left out: number, attempt, step, ts, value."""

    name: ClassVar[str] = "scalars"
    result: ClassVar[type[Model]] = Rows
    run: str
    metric: str
    agent: str | None = Field(default=None, description="None for the events that name no agent")
    attempt: AttemptNumber | None = Field(default=None, description="None joins all, as in `series`")
    start: Whole = Field(default=0, ge=0)
    limit: Whole = Field(default=1000, ge=1, le=100_000)


class Events(Query[Rows]):
    """Raw events of one attempt in order of number: {number, event, ts, step, value, line}."""

    name: ClassVar[str] = "events"
    result: ClassVar[type[Model]] = Rows
    run: str
    attempt: AttemptNumber | None = Field(default=1, description="None for the newest")
    kinds: list[str] = Field(default_factory=list, max_length=1000)
    start: Whole = Field(default=0, ge=0)
    limit: Whole = Field(default=1000, ge=1, le=100_000)


class SavedCheckpoint(Model):
    """A checkpoint that an attempt has saved, as its `checkpoint_saved` event describes it."""

    attempt: int
    host: str = Field(description="where the attempt ran, and so where the file is")
    path: str = Field(description="relative to the attempt's folder, or absolute")
    step: int | None = None
    ts: float | None = None
    best: bool = Field(default=False, description="the best of the run so far, by the worker's own measure")
    score: float | None = Field(default=None, description="the value of that measure")


class CheckpointsResult(Model):
    """Checkpoints in the order in which they were saved: by attempt, then by line."""

    checkpoints: list[SavedCheckpoint]


class Checkpoints(Query[CheckpointsResult]):
    """The newest checkpoints of a run, over all attempts. Their files may be gone. Refused with `unknown_run`."""

    name: ClassVar[str] = "checkpoints"
    result: ClassVar[type[Model]] = CheckpointsResult
    run: str
    limit: Whole = Field(default=10_000, ge=1, le=100_000)


class Logs(Query[Rows]):
    """Log lines of one attempt ({number, line}): a page from `start`, or the last `tail` lines."""

    name: ClassVar[str] = "logs"
    result: ClassVar[type[Model]] = Rows
    run: str
    attempt: AttemptNumber | None = Field(default=None, description="None for the newest")
    start: Whole = Field(default=0, ge=0)
    limit: Whole = Field(default=1000, ge=1, le=100_000)
    tail: Whole | None = Field(default=None, ge=1, le=100_000)


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


class Streams(Query[StreamsResult]):
    """Counters of the streams of a run, or of all streams that are not yet complete."""

    name: ClassVar[str] = "streams"
    result: ClassVar[type[Model]] = StreamsResult
    run: str | None = None


class StoredBytesResult(Model):
    """Bytes by run."""

    runs: dict[str, int]


class StoredBytes(Query[StoredBytesResult]):
    """Bytes of the journals and logs of runs that are stored; runs without any are left out."""

    name: ClassVar[str] = "stored_bytes"
    result: ClassVar[type[Model]] = StoredBytesResult
    runs: list[str] = Field(min_length=1, max_length=1000)


class RemoveEvents(Command[Ack]):
    """Delete everything that is stored of a run. Refused with `not_final` while lines of it may still come."""

    name: ClassVar[str] = "remove_events"
    internal: ClassVar[bool] = True
    result: ClassVar[type[Model]] = Ack
    run: str
    open_too: bool = Field(default=False, description="even so: the host that has the rest of the lines is gone")
