"""The bodies of state and telemetry messages, one pydantic model each."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

__all__ = [
    "FINAL_STATES",
    "AgentSummary",
    "AttemptNumber",
    "AttemptPhase",
    "AttemptReport",
    "Batch",
    "BuildProgress",
    "Checkpoint",
    "EnvironmentStatus",
    "ExitReport",
    "ExperimentState",
    "ExperimentStateName",
    "FailureCategory",
    "FrameHandle",
    "Gpu",
    "HostName",
    "HostState",
    "Input",
    "Limits",
    "LineupProgress",
    "Model",
    "Number",
    "Position",
    "Resources",
    "Retries",
    "RunId",
    "RunSpec",
    "RunState",
    "RunStateName",
    "RunSummary",
    "ServiceState",
    "ShardProgress",
    "StoredPositions",
    "StreamId",
    "StreamKind",
    "StreamTail",
    "StreamTails",
    "Usage",
    "Use",
]


class Model(BaseModel):
    """Base of all bodies: immutable, and unknown keys are ignored so that newer senders are understood."""

    # Validators are built on first use: no process needs all of them, and building them takes a fifth of start-up.
    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings", defer_build=True)


# Valid in topics and as names of folders.
RunId = Annotated[str, Field(pattern=r"^[0-9A-Za-z_-]{1,64}$")]
HostName = Annotated[str, Field(pattern=r"^[a-z0-9-]{1,63}$")]


def _not_a_flag(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError("true and false are not numbers")  # noqa: TRY004 - pydantic reports only ValueErrors
    return value


# Numbers given by callers; pydantic alone accepts `true` as 1.
Whole = Annotated[int, BeforeValidator(_not_a_flag)]
Number = Annotated[float, BeforeValidator(_not_a_flag)]
AttemptNumber = Annotated[Whole, Field(ge=1, lt=2**31)]


class RunStateName(StrEnum):
    """Where a run is in its life."""

    QUEUED = "queued"
    PREPARING = "preparing"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"

    @property
    def final(self) -> bool:
        """Whether a run in this state will never change again."""
        return self in FINAL_STATES


FINAL_STATES = frozenset(
    {RunStateName.SUCCEEDED, RunStateName.FAILED, RunStateName.CANCELLED, RunStateName.LOST},
)


class FailureCategory(StrEnum):
    """Whose fault a failure is: the machinery's, the user's code's, or the configuration's."""

    INFRASTRUCTURE = "infrastructure"
    APPLICATION = "application"
    CONFIGURATION = "configuration"


Tag = Annotated[str, Field(pattern=r"^!?[a-z0-9][a-z0-9._:-]{0,62}$")]


class Resources(Model):
    """What a run needs, or what a host has."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cpus: Number = Field(default=1.0, gt=0, le=4096, description="CPU cores; fractions are allowed")
    memory_mb: Whole = Field(default=1024, gt=0, le=64 * 1024 * 1024, description="memory in MiB")
    gpus: Number = Field(
        default=0, ge=0, le=1024, description="whole GPUs for this run alone, or a share of one, such as 0.5"
    )

    @field_validator("gpus")
    @classmethod
    def _whole_or_share(cls, value: float) -> float:
        if value > 1 and value != int(value):
            raise ValueError("a share of a GPU is less than 1, and more than one GPU is a whole number")
        if round(value, 2) != value:
            raise ValueError("a share of a GPU has at most two decimals")
        return value


class Limits(Model):
    """What a run may not exceed: at 80 % there is a warning, at the limit it is stopped."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    memory_mb: Whole | None = Field(default=None, gt=0, description="memory of all its processes, in MiB")
    wall_s: Number | None = Field(default=None, gt=0, description="seconds that one attempt may take")


ExitCode = Annotated[Whole, Field(ge=1, le=255)]


class Retries(Model):
    """Which failures are worth another attempt. A refused configuration or a limit that was hit never is."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max: Whole = Field(default=0, ge=0, le=100, description="maximum number of further attempts")
    on: tuple[Literal["infrastructure", "application"] | ExitCode, ...] = Field(
        default=("infrastructure",), description="categories of failure and exit codes that are retried"
    )
    delay_s: Number = Field(default=5.0, ge=0, le=3600, description="wait before the second attempt; doubles each time")


WorkerName = Annotated[str, Field(pattern=r"^[a-z0-9_-]+$", description="name of the worker, e.g. baseline")]
ProfileName = Annotated[str, Field(pattern=r"^[a-z0-9_.-]+$", description="which of the worker's environments")]
Folder = Annotated[str, Field(pattern=r"^/[^:\x00]*$", max_length=4096)]


class Use(Model):
    """The environment of another worker that a run needs on its host."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    worker: WorkerName
    profile: ProfileName = "default"


class RunSpec(Model):
    """What a user asks for: one run of one worker with one configuration."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    worker: WorkerName
    profile: ProfileName = "default"
    uses: tuple[Use, ...] = Field(
        default=(),
        max_length=16,
        description="environments that must be on the host beside the run's own; `worker.json` says how to start each",
    )
    interactive: bool = Field(
        default=False, description="the worker reads lines from its stdin, which `tell` of the supervisor sends"
    )
    pythonpath: tuple[Folder, ...] = Field(
        default=(), max_length=32, description="absolute folders on the host from which the worker may import modules"
    )
    config: dict[str, Any] = Field(default_factory=dict, description="the worker's own configuration")
    name: str = Field(default="", max_length=120, description="readable name; made from the configuration if empty")
    resources: Resources = Field(default_factory=Resources)
    limits: Limits = Field(default_factory=Limits)
    retries: Retries = Field(default_factory=Retries)
    grace_s: Number = Field(default=10.0, ge=0, le=3600, description="seconds between SIGTERM and SIGKILL")
    priority: Whole = Field(default=0, ge=-1000, le=1000, description="higher goes first")
    after: tuple[str, ...] = Field(
        default=(), max_length=1000, description="runs, by id or name, that must have succeeded before this one starts"
    )
    requires: tuple[Tag, ...] = Field(
        default=(), max_length=32, description="tags that the host must have; `!tag` for one that it must not have"
    )
    wait_for_host: bool = Field(
        default=False, description="if no host could ever take it: wait for one to join, instead of being refused"
    )
    group: str = Field(default="", pattern=r"^[A-Za-z0-9._-]{0,80}$", description="the sweep that the run belongs to")
    replaces: str = Field(default="", description="the run that this one repeats")

    @field_validator("uses")
    @classmethod
    def _no_environment_twice(cls, uses: tuple[Use, ...], info: ValidationInfo) -> tuple[Use, ...]:
        seen = {(info.data.get("worker"), info.data.get("profile"))}
        for use in uses:
            if (use.worker, use.profile) in seen:
                raise ValueError(f"{use.worker}/{use.profile} is the run's own environment, or named twice")
            seen.add((use.worker, use.profile))
        return uses


class RunState(Model):
    """The state of a run as the scheduler sees it."""

    run: str
    name: str
    worker: str
    profile: str
    state: RunStateName
    reason: str = Field(description="why it is in this state, one sentence")
    category: FailureCategory | None = Field(default=None, description="only when failed")
    attempt: int = Field(description="0 before the first placement")
    host: str | None = None
    submitted_at: float
    changed_at: float
    started_at: float | None = Field(default=None, description="when the current attempt began to run")
    ended_at: float | None = None
    exit_code: int | None = None
    detail: str = Field(default="", description="progress of a build, last log lines of a failure")
    priority: int = 0
    group: str = ""
    attempts: int = Field(default=1, description="maximum number of attempts")
    next_attempt_at: float | None = Field(default=None, description="earliest start of the next attempt")
    replaces: str = Field(default="", description="the run that this one repeats")
    version: int = Field(default=0, description="grows with every change of any run: of two states the larger is newer")
    deleted: bool = Field(default=False, description="the run was deleted; this is the last that is heard of it")


class AttemptPhase(StrEnum):
    """Where an attempt is on its host."""

    PREPARING = "preparing"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


class Checkpoint(Model):
    """A checkpoint that a run can resume from."""

    path: str = Field(description="absolute, on the host where it was saved")
    step: int | None = Field(default=None, ge=0, lt=2**63)


class Input(Model):
    """A checkpoint of another run that a field of the config names, as in `run:train@best`."""

    field: tuple[str | int, ...] = Field(description="where in the config: keys, and positions in lists")
    run: RunId
    attempt: AttemptNumber
    host: HostName = Field(description="where it was saved")
    path: str = Field(description="relative to the attempt's folder, or absolute")
    step: int | None = None


class ExitReport(Model):
    """How an attempt ended."""

    # Times and usage that are not finite numbers would break comparisons in the scheduler.
    model_config = ConfigDict(allow_inf_nan=False)

    code: int | None = Field(ge=0, le=255, description="exit code; None if it never started or ended by a signal")
    signal: int | None = Field(default=None, ge=1, le=64)
    stopped: bool = Field(default=False, description="it had been asked to stop before it ended")
    category: FailureCategory | None = Field(default=None, description="None when it succeeded or was stopped")
    reason: str = ""
    started_at: float | None = None
    ended_at: float
    max_rss_mb: float = 0.0
    last_lines: list[str] = Field(default_factory=list, description="end of its log when it failed")
    phase: AttemptPhase | None = Field(default=None, description="the phase that it had reached")
    limit: Literal["memory", "wall"] | None = Field(default=None, description="the limit for which it was stopped")
    checkpoint: Checkpoint | None = Field(default=None, description="the last one saved, if the worker can resume")


class Usage(Model):
    """What a run's processes use at this moment."""

    model_config = ConfigDict(allow_inf_nan=False)

    cpu_percent: float = 0.0
    rss_mb: float = 0.0
    processes: int = 0


class AttemptReport(Model):
    """One attempt as its host sees it; repeated until the scheduler says `forget`."""

    model_config = ConfigDict(allow_inf_nan=False)

    run: RunId
    attempt: AttemptNumber
    phase: AttemptPhase
    detail: str = ""
    resources: Resources
    gpus: dict[str, float] = Field(default_factory=dict, description="id of each of its GPUs -> its share")
    started_at: float | None = None
    exit: ExitReport | None = Field(default=None, description="set once phase is ended")
    usage: Usage = Field(default_factory=Usage)
    warnings: list[str] = Field(default_factory=list, description="limits that it approaches")
    warm: bool = Field(default=False, description="it was started from a preloaded template")


class EnvironmentStatus(Model):
    """One profile of one worker on a host."""

    worker: str
    profile: str
    status: Literal["available", "building", "installed", "broken"]
    detail: str = Field(default="", description="why broken, what is being built")
    fingerprint: str = Field(default="", description="changes when the description of an installed environment does")


class Gpu(Model):
    """One GPU of a host."""

    id: str = Field(pattern=r"^[A-Za-z0-9-]+$", description="as in CUDA_VISIBLE_DEVICES")
    name: str = ""
    memory_mb: int = 0


class HostState(Model):
    """What the scheduler needs to know about a host."""

    model_config = ConfigDict(allow_inf_nan=False)

    host: HostName
    instance: str = Field(default="", description="changes with each start of the supervisor")
    draining: bool = Field(default=False, description="it is about to end: place nothing here")
    total: Resources
    gpus: list[Gpu] = Field(default_factory=list)
    tags: list[str] = Field(default_factory=list, description="what runs may require of it")
    environments: list[EnvironmentStatus] = Field(default_factory=list)
    attempts: list[AttemptReport] = Field(default_factory=list)
    cpu_percent: float = 0.0
    memory_used_mb: float = 0.0


class BuildProgress(Model):
    """A line of an environment's build."""

    host: str
    worker: str
    profile: str
    step: str = Field(description="what is being done, for people")
    percent: float = Field(ge=0, le=100)
    done: bool = False
    error: str = ""


class ServiceState(Model):
    """Heartbeat of a service."""

    service: str
    pid: int
    started_at: float
    status: Literal["ok", "degraded", "stopping"] = "ok"
    detail: str = Field(default="", description="why degraded")
    counters: dict[str, int | float] = Field(default_factory=dict)


StreamKind = Literal["journal", "log"]


class StreamId(Model):
    """One numbered sequence of lines."""

    run: RunId
    attempt: AttemptNumber
    kind: StreamKind


class Position(Model):
    """A place in a stream: the next line's number and the byte where it starts."""

    number: int = Field(default=0, ge=0)
    offset: int = Field(default=0, ge=0)


class Batch(Model):
    """Consecutive lines of a stream; the lines themselves are the message's one buffer."""

    host: HostName
    run: RunId
    attempt: AttemptNumber
    kind: StreamKind
    first: int = Field(ge=0, description="number of the first line")
    count: int = Field(ge=1)
    offset: int = Field(ge=0, description="byte of the file where the first line starts")
    end: int = Field(ge=0, description="byte of the file after the last line")


class StreamTail(Model):
    """The current end of a stream."""

    run: RunId
    attempt: AttemptNumber
    kind: StreamKind
    sent: Position = Field(description="how far it has been published")
    final: bool = Field(description="the attempt has ended and all of the file has been published")


class StreamTails(Model):
    """All streams of a host that are not yet stored completely."""

    host: HostName
    tails: list[StreamTail]


class StoredPosition(Model):
    """How far a stream has been stored."""

    run: RunId
    attempt: AttemptNumber
    kind: StreamKind
    stored: Position
    final: bool = Field(default=False, description="it has ended and is stored completely: stop announcing it")


class StoredPositions(Model):
    """What the aggregator has committed; a bridge keeps a bounded window ahead of it."""

    storing: bool = Field(description="False while the store cannot write: bridges then do not wait for it")
    positions: list[StoredPosition]


class FrameHandle(Model):
    """Where a frame is, and its figures. On `picture.` topics the JPEG picture of the frame is the message's buffer."""

    host: HostName
    run: RunId
    attempt: AttemptNumber
    stream: str = Field(description="a run can have several, such as one for each agent")
    file: str = Field(description="the ring, in the shared memory of the host")
    epoch: int = Field(description="1 for a writer's first file, plus 1 for each replacement")
    slot: int = Field(ge=0)
    number: int = Field(ge=0, description="counts the frames of a stream, from 0")
    shape: tuple[int, ...] = Field(description="height, width and, unless it is 1, channels, as it is in the ring")
    dtype: Literal["uint8"] = "uint8"
    wall: float = Field(description="when it was published")
    step: int = 0
    episode: int = 0
    last_reward: float | None = None
    rolling_return: float | None = None
    step_rate_hz: float | None = None
    encoding: Literal["jpeg"] | None = Field(
        default=None, description="format of the picture in the buffer; None if there is none"
    )


class AgentSummary(Model):
    """The episodes of one agent of a run."""

    episodes: int = 0
    return_last: float | None = None
    return_mean: float | None = Field(default=None, description="over the last 100 episodes")


class RunSummary(Model):
    """Live aggregates of a run: steps, episodes, returns and scalars over all attempts, the rest of the newest one.

    What a later attempt plays again counts once. Returns are those of the team: of episodes without an agent, or else
    the sum over agents of each episode.
    """

    run: str
    attempt: int
    task: str = ""
    events: int = 0
    step: int = Field(default=0, description="largest step seen")
    total_steps: int | None = None
    episodes: int = 0
    total_episodes: int | None = None
    steps_per_s: float = 0.0
    return_last: float | None = None
    return_mean: float | None = Field(default=None, description="over the last 100 episodes")
    return_std: float | None = None
    returns: list[float] = Field(default_factory=list, description="a short curve of episode returns, for sparklines")
    agents: dict[str, AgentSummary] = Field(default_factory=dict, description="the first 32 agents, by name")
    scalars: dict[str, float] = Field(default_factory=dict, description="newest value of each scalar")
    malformed: int = 0
    last_event_at: float | None = None
    last_heartbeat_at: float | None = None
    checkpoint: str | None = None
    outcome: str | None = Field(default=None, description="terminal event of the journal, if it came")
    complete: bool = Field(default=False, description="every line of an ended attempt is stored")
    received: int = 0
    repaired: int = 0
    missing: int = Field(default=0, description="lines known to exist and not yet stored")


class ExperimentStateName(StrEnum):
    """Where an experiment is in its life."""

    RUNNING = "running"
    STOPPING = "stopping"
    FINISHED = "finished"
    STOPPED = "stopped"
    FAILED = "failed"
    DELETED = "deleted"

    @property
    def final(self) -> bool:
        """Whether nothing more happens until the experiment is started again."""
        return self not in {ExperimentStateName.RUNNING, ExperimentStateName.STOPPING}


class LineupProgress(Model):
    """How far one lineup of an experiment is."""

    lineup: str
    done: int = Field(description="episodes whose records are there")
    wanted: int = Field(description="episodes that it is to play; the stopping rule may raise it")
    mean_return: float | None = Field(default=None, description="mean over episodes of the sum over agents")
    low: float | None = Field(default=None, description="95 % interval of the mean over episodes, Student's t")
    high: float | None = None
    failures: int = Field(default=0, description="failures of its operators, such as an illegal move")
    given_up: str = Field(default="", description="why the rest of its episodes cannot be played")


class ShardProgress(Model):
    """One run that plays a part of an experiment."""

    number: int
    run: str
    state: str = Field(description="state of the run; `submitting` until the scheduler has it")
    host: str | None = None
    done: int
    total: int
    reason: str = ""


class ExperimentState(Model):
    """The state of an experiment as the operator service sees it."""

    experiment: str
    state: ExperimentStateName
    reason: str = Field(default="", description="why it is in this state, one sentence")
    done: int
    wanted: int
    lineups: list[LineupProgress]
    shards: list[ShardProgress] = Field(default_factory=list, description="of the current start, in order")
    lost: int = Field(default=0, description="shards whose missing episodes were played again by another shard")
    conflicts: int = Field(default=0, description="episodes that were played twice with different results")
    started_at: float
    ended_at: float | None = None
    folder: str = Field(
        default="", description="where experiment.json and episodes.jsonl are, on the service's machine"
    )
    look: str = Field(default="", description="what the stopping rule decided last")
    notes: list[str] = Field(default_factory=list, description="what a user should know about this start")
    version: int = Field(default=0, description="grows with every change: of two states the larger is newer")
