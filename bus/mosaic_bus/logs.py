"""Logging of services: one JSON object per line on stderr. A failure to log never stops a service.

structlog imports rich, which services do not use and which takes a fifth of their start-up. Clients hardly ever log. So
structlog is imported when something is first logged, and services import it without rich.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, ClassVar, TextIO, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from types import ModuleType
    from typing import Protocol

    class Writable(Protocol):
        """All that a logger needs of a stream."""

        def write(self, text: str, /) -> int: ...
        def flush(self) -> None: ...


__all__ = ["FirstTime", "ForgivingStream", "Logger", "configure_logging", "log_to_stderr"]


class FirstTime:
    """Tells whether a key is seen for the first time, so that one complaint is logged once."""

    def __init__(self, limit: int = 1000) -> None:
        # Keys beyond the limit push the oldest out.
        self._limit = limit
        self._seen: dict[Hashable, None] = {}

    def __call__(self, key: Hashable) -> bool:
        """Remember a key; False if it is known already."""
        if key in self._seen:
            return False
        self._seen[key] = None
        if len(self._seen) > self._limit:
            del self._seen[next(iter(self._seen))]
        return True


class Logger:
    """A logger of structlog's, made when it is first used."""

    configure: ClassVar[Callable[[], None] | None] = None
    _made: Any = None

    def __getattr__(self, level: str) -> Any:
        if self._made is None:
            import structlog  # noqa: PLC0415 - start-up time

            if Logger.configure is not None:
                Logger.configure()
            self._made = structlog.get_logger()
        return getattr(self._made, level)


class ForgivingStream:
    """Writes to another stream and swallows the errors of a full disk below it: what cannot be logged is counted."""

    def __init__(self, stream: Writable) -> None:
        self._stream = stream
        self.unwritten = 0

    def write(self, text: str) -> int:
        """Write if that is possible."""
        try:
            return self._stream.write(text)
        except OSError:
            self.unwritten += 1
            return len(text)

    def flush(self) -> None:
        """Flush if that is possible."""
        try:
            self._stream.flush()
        except OSError:
            self.unwritten += 1


def configure_logging(service: str) -> None:
    """Log with time, level and service: for a process that is a service and nothing else."""
    structlog = _import_structlog_without_rich()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", ForgivingStream(sys.stderr))),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=service)


def log_to_stderr() -> None:
    """Keep what the bus client logs out of stdout, which may have to be JSON: for a command."""
    stream = sys.stderr  # as it is now: a live picture in the terminal puts another in its place

    def configure() -> None:
        import structlog  # noqa: PLC0415 - start-up time

        structlog.configure(logger_factory=structlog.PrintLoggerFactory(stream), cache_logger_on_first_use=True)

    Logger.configure = staticmethod(configure)


def _import_structlog_without_rich() -> ModuleType:
    modules: dict[str, Any] = sys.modules
    # What is None there cannot be imported, for which structlog is prepared.
    hidden = modules.setdefault("rich", None) is None
    try:
        import structlog  # noqa: PLC0415 - rich must be hidden first
    finally:
        if hidden:
            del modules["rich"]
    return structlog
