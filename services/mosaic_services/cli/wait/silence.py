"""How long a service may be silent before a command that waits gives up. Runs go on while a service is restarted."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from mosaic_bus.errors import NoAnswerError
from mosaic_services.cli.options import current

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["SilenceLimit", "require_answers"]


def require_answers(silent: dict[str, float]) -> None:
    """Raise `NoAnswerError` if a service has been silent for longer than the setting `cli.outage_s`."""
    for service, seconds in silent.items():
        if seconds > current.settings.cli.outage_s:
            raise NoAnswerError(service, "heartbeat", seconds)


class SilenceLimit:
    """A reusable context for requests. It swallows `NoAnswerError` until the limit, `cli.outage_s`, is reached.

    After the block, `silent` is the error if a service did not answer.
    """

    def __init__(self) -> None:
        self.silent: NoAnswerError | None = None
        self._limit_s = current.settings.cli.outage_s
        self._answered_at = time.monotonic()

    def __enter__(self) -> None:
        """Begin a round of requests."""
        self.silent = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Note whether all requests were answered."""
        if not isinstance(error, NoAnswerError):
            self._answered_at = time.monotonic()
            return False
        self.silent = error
        return time.monotonic() - self._answered_at <= self._limit_s
