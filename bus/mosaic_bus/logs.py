"""How services log: one JSON object per line on stderr, and never so that logging stops a service."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO, cast

import structlog

if TYPE_CHECKING:
    from typing import Protocol

    class Writable(Protocol):
        """All that a logger needs of a stream."""

        def write(self, text: str, /) -> int: ...
        def flush(self) -> None: ...


__all__ = ["ForgivingStream", "configure_logging"]


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
    """Log with time, level and service."""
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
