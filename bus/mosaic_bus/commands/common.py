"""What all commands share, and the commands that every service answers."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar

from pydantic import ConfigDict, Field

from mosaic_bus.messages import Model, ServiceState

__all__ = [
    "Ack",
    "Command",
    "Info",
    "InfoResult",
    "Ping",
    "Query",
    "Stats",
]

Result = TypeVar("Result", bound=Model)


class Command(Model, Generic[Result]):
    """Base of all commands: `name` on the wire, and the class of the result."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: ClassVar[str]
    result: ClassVar[type[Model]]
    # Whether only services send it to each other, so that the gateway does not offer it.
    internal: ClassVar[bool] = False


class Query(Command[Result], Generic[Result]):
    """Base of commands that change nothing. Too many at once are refused with `busy`: ask again later."""


class Ack(Model):
    """Done; there is nothing more to say."""

    note: str = ""


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
