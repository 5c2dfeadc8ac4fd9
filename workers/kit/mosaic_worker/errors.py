"""The kit's own exceptions, under one base class."""

from typing import ClassVar

__all__ = [
    "AlreadyEndedError",
    "ConfigError",
    "EventError",
    "FrameError",
    "InfrastructureError",
    "RequestError",
    "RunCancelled",
    "SpaceError",
    "StdoutError",
    "WorkerError",
]


class WorkerError(Exception):
    """Base of all errors of the kit; `category` is reported in `run_failed`."""

    category: ClassVar[str] = "application"


class ConfigError(WorkerError):
    """The config was refused; `problems` has one line per problem."""

    category = "configuration"

    def __init__(self, problems: list[str] | str) -> None:
        """Keep one line per problem."""
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class InfrastructureError(WorkerError):
    """Something around the run failed (disk, network, device); a retry elsewhere may succeed."""

    category = "infrastructure"


class RunCancelled(WorkerError):  # noqa: N818 - not a fault: a way to end
    """The run was asked to stop; `run_worker` catches and reports it."""

    def __init__(self, reason: str) -> None:
        """Keep the reason."""
        self.reason = reason
        super().__init__(reason)


class AlreadyEndedError(WorkerError):
    """A second terminal event was about to be written."""

    def __init__(self, ended: str, event: str) -> None:
        """Name both events."""
        self.ended = ended
        self.event = event
        super().__init__(f"{event} cannot be written: the run already ended with {ended}")


class EventError(WorkerError):
    """A line is not a valid event of the dialect."""


class FrameError(WorkerError):
    """A frame cannot be published."""


class RequestError(WorkerError):
    """An interactive request is invalid; the worker answers with this message and continues."""


class SpaceError(WorkerError):
    """A space or a value of it cannot be turned into JSON or back."""


class StdoutError(WorkerError):
    """There is no usable descriptor to write events to."""
