"""Strict, typed models of the event dialect, for checking the lines of a worker. Only the present dialect is valid.

Unknown fields are kept. Numbers may be the strings "NaN", "Infinity" and "-Infinity", and any value may be null where
that says "unknown". `docs/protocol.md` part 4 is the contract.
"""

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from mosaic_worker.errors import EventError

__all__ = [
    "EVENTS",
    "Artifact",
    "CheckpointLoaded",
    "CheckpointSaved",
    "Episode",
    "Event",
    "Heartbeat",
    "Log",
    "Reply",
    "RunCancelled",
    "RunCompleted",
    "RunFailed",
    "RunStarted",
    "Scalars",
    "Step",
    "parse_event",
]

Number = FiniteFloat | Literal["NaN", "Infinity", "-Infinity"] | None
Count = int | None


class Event(BaseModel):
    """What every line has."""

    model_config = ConfigDict(extra="allow", strict=True)

    event: str = Field(min_length=1)
    ts: FiniteFloat = Field(gt=0)


class RunStarted(Event):
    """The run begins."""

    run_id: str = Field(min_length=1)
    worker: str = Field(min_length=1)
    config: dict[str, Any] | None = None
    env_id: str | None = None
    seed: int | None = None
    total_steps: Count = None
    total_episodes: Count = None
    task: str | None = None
    versions: dict[str, str | None] | None = None


class RunCompleted(Event):
    """The run did what it was asked to do."""

    step: Count = None
    episodes: Count = None
    summary: dict[str, Any] | None = None


class RunFailed(Event):
    """The run failed."""

    category: Literal["configuration", "application", "infrastructure"]
    error: str
    traceback: str | None = None
    step: Count = None


class RunCancelled(Event):
    """The run was asked to stop."""

    reason: str | None = None
    step: Count = None


class Heartbeat(Event):
    """The process is alive."""

    uptime_s: Number = None
    step: Count = None


class CheckpointSaved(Event):
    """A checkpoint is complete on disk."""

    path: str = Field(min_length=1)
    step: Count = None
    best: bool | None = None
    score: Number = None


class CheckpointLoaded(Event):
    """The run goes on from a checkpoint."""

    path: str = Field(min_length=1)
    step: Count = None


class Step(Event):
    """One step of an environment."""

    step: Count
    episode: Count = None
    reward: Number = None
    terminated: bool | None = None
    truncated: bool | None = None
    action: Any = None
    agent: str | None = None
    info: dict[str, Any] | None = None


class Episode(Event):
    """A finished episode."""

    episode: Count
    return_: Number = Field(alias="return")
    length: Count = None
    step: Count = None
    seed: int | None = None
    agent: str | None = None
    returns: dict[str, Number] | None = None
    success: bool | None = None
    info: dict[str, Any] | None = None


class Scalars(Event):
    """Named numbers at a step."""

    step: Count
    values: dict[str, Number]
    agent: str | None = None


class Log(Event):
    """A line for people."""

    level: Literal["debug", "info", "warning", "error"]
    message: str
    step: Count = None


class Artifact(Event):
    """A file worth keeping."""

    kind: str = Field(min_length=1)
    path: str = Field(min_length=1)
    step: Count = None
    info: dict[str, Any] | None = None


class Reply(Event):
    """The answer to a request that came to an interactive run."""

    id: Any = None
    reply: dict[str, Any]


EVENTS: dict[str, type[Event]] = {
    "run_started": RunStarted,
    "run_completed": RunCompleted,
    "run_failed": RunFailed,
    "run_cancelled": RunCancelled,
    "heartbeat": Heartbeat,
    "checkpoint_saved": CheckpointSaved,
    "checkpoint_loaded": CheckpointLoaded,
    "step": Step,
    "episode": Episode,
    "scalars": Scalars,
    "log": Log,
    "artifact": Artifact,
    "reply": Reply,
}


def parse_event(line: bytes | str) -> Event:
    """Parse and validate one line or raise EventError; an event that the dialect does not know is a plain Event."""
    try:
        fields = json.loads(line, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise EventError(f"not JSON: {error}: {line[:120]!r}") from error
    if not isinstance(fields, dict):
        raise EventError(f"not a JSON object: {line[:120]!r}")
    name = fields.get("event")
    model = EVENTS.get(name, Event) if isinstance(name, str) else Event
    try:
        return model.model_validate(fields)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in error.errors())
        raise EventError(f"{name}: {problems}: {line[:120]!r}") from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f'{name} is not JSON; write it as the string "{name}"')
