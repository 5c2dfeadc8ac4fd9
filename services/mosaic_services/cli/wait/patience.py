"""Patience with a service that is being restarted: runs go on without it, and so does who waits for them."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mosaic_bus.errors import NoAnswerError

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Outage", "require_answers"]

_LONGEST_S = 60.0


def require_answers(silent: dict[str, float]) -> None:
    """Raise `NoAnswerError` if a service has been silent for a minute."""
    for service, seconds in silent.items():
        if seconds > _LONGEST_S:
            raise NoAnswerError(service, "heartbeat", seconds)


class Outage:
    """A block that asks services. No answer is tolerated until there was none for a minute, then raised.

    `silent` says, after the block, whether it got to its end, and if not, who did not answer.
    """

    def __init__(self) -> None:
        self.silent: NoAnswerError | None = None
        self._answered_at = time.monotonic()

    def __enter__(self) -> None:
        """Begin to ask."""
        self.silent = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Take note of an answer, or of none."""
        if not isinstance(error, NoAnswerError):
            self._answered_at = time.monotonic()
            return False
        self.silent = error
        return time.monotonic() - self._answered_at <= _LONGEST_S
