"""All errors of the bus, with one base class."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from mosaic_bus.refusals import RefusalCode, RefusalDetails

__all__ = [
    "BadAddressError",
    "BadMessageError",
    "BusError",
    "CannotBindError",
    "CommandRefusedError",
    "FrameError",
    "HomeInUseError",
    "LayoutError",
    "MessageTooLargeError",
    "NameTakenError",
    "NoAnswerError",
    "NotConnectedError",
    "PillowMissingError",
    "StaleFrameError",
    "TooManySubscriptionsError",
    "UnsafeAddressError",
    "WrongVersionError",
]


class BusError(Exception):
    """Base of all errors raised by `mosaic_bus`."""


class BadMessageError(BusError):
    """Bytes that are not a message of this protocol."""

    code = "bad_message"


class WrongVersionError(BadMessageError):
    """A message of another protocol version."""

    code = "wrong_version"

    def __init__(self, got: str, expected: int) -> None:
        super().__init__(f"protocol version {got} is not supported, only {expected}")


class MessageTooLargeError(BadMessageError):
    """A message larger than the broker accepts."""

    code = "too_large"

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"message of {size} bytes exceeds {limit}: ask for fewer rows, or send it in pieces")
        self.size = size


class CommandRefusedError(BusError):
    """A service refused a command; `code`, `message` and `details` say why."""

    def __init__(self, code: RefusalCode, message: str, details: RefusalDetails | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details or RefusalDetails()

    @classmethod
    def received(cls, error: object) -> CommandRefusedError:
        """Read the `error` of an answer, even if it is not as documented."""
        fields = error if isinstance(error, dict) else {}
        name, message = str(fields.get("code", "")), str(fields.get("message", "refused without a reason"))
        code = RefusalCode.read(name)
        if code is RefusalCode.UNKNOWN and name:
            message = f"{message} ({name})"
        try:
            details = RefusalDetails.model_validate(fields.get("details") or {})
        except ValidationError:
            details = RefusalDetails()
        return cls(code, message, details)

    def about(self, prefix: str, **details: Any) -> CommandRefusedError:
        """Return this refusal with a prefix to its message and further details."""
        return CommandRefusedError(self.code, f"{prefix}{self.message}", self.details.model_copy(update=details))


class NoAnswerError(BusError):
    """A service did not answer a command in time."""

    def __init__(self, service: str, command: str, seconds: float) -> None:
        super().__init__(
            f"{service} did not answer {command!r} within {seconds:g} s; is it running? (mosaic status, mosaic up)"
        )
        self.service = service


class NotConnectedError(BusError):
    """No broker answers at an address."""

    def __init__(self, address: str, seconds: float) -> None:
        super().__init__(f"no broker answers at {address} after {seconds:g} s; start one with: mosaic up")
        self.address = address


class TooManySubscriptionsError(BusError):
    """A client subscribes to more topics than the broker keeps for one connection."""

    def __init__(self, most: int) -> None:
        super().__init__(f"a connection has at most {most:,} subscriptions: subscribe to a prefix that they share")


class HomeInUseError(BusError):
    """Another process of the same kind already runs in this home."""

    def __init__(self, what: str, path: str, pid: str) -> None:
        super().__init__(f"another {what} (pid {pid}) already runs in {path}; stop it with: mosaic down")


class CannotBindError(BusError):
    """The broker cannot bind its sockets."""

    def __init__(self, endpoint: str, reason: str) -> None:
        super().__init__(f"cannot listen at {endpoint}: {reason}")


class BadAddressError(BusError):
    """An address that cannot be connected to."""

    def __init__(self, endpoint: str, reason: str) -> None:
        super().__init__(f"cannot connect to {endpoint}: {reason}")


class NameTakenError(BusError):
    """Another service of the same name runs on this bus."""

    def __init__(self, name: str, address: str, pid: int) -> None:
        super().__init__(f"another {name} (pid {pid}) answers at {address}: stop it, or give this one another name")


class UnsafeAddressError(BusError):
    """An address that would expose the bus to other machines or users without keys."""

    def __init__(self, address: str, why: str = "other machines can reach it") -> None:
        super().__init__(
            f"{address} is refused, since {why}, and the bus has no keys yet: "
            "use ipc:// (the default) or a loopback address such as tcp://127.0.0.1:5550"
        )


class FrameError(BusError):
    """Base of all errors about frames in shared memory."""


class LayoutError(FrameError):
    """A file is not a ring of frames, or has a layout that this version does not know."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} cannot be read as frames: {reason}")
        self.path = path


class StaleFrameError(FrameError):
    """A handle names a frame that is no longer there."""

    def __init__(self, path: str, number: int, reason: str) -> None:
        super().__init__(f"frame {number} of {path} is gone: {reason}")
        self.path = path
        self.number = number


class PillowMissingError(FrameError):
    """Pictures from another machine are JPEGs, and Pillow is not installed."""

    def __init__(self) -> None:
        super().__init__("pictures from another machine are JPEGs, and Pillow is not installed: pip install pillow")
