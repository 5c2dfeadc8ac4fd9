"""The commands that a supervisor answers."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from mosaic_bus.commands.common import Ack, Command
from mosaic_bus.messages import Checkpoint, Model, RunSpec, StreamKind

__all__ = [
    "Describe",
    "Description",
    "Detach",
    "Forget",
    "Place",
    "Resend",
    "Stop",
]


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
    gpus: dict[str, float] = Field(default_factory=dict, description="id of each GPU that it gets -> its share")
    resume: Checkpoint | None = Field(
        default=None, description="go on from here, if the worker can and the file exists"
    )


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
