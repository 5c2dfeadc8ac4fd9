"""Every error of the scheduler: one base class, messages that carry the facts."""

from __future__ import annotations

from mosaic_bus.errors import BusError

__all__ = ["SchedulerError", "StoreError"]


class SchedulerError(BusError):
    """Base of all errors raised by the scheduler."""


class StoreError(SchedulerError):
    """The store could not be read or written."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"the scheduler's store {path} cannot be used: {reason}")
        self.path = path
        self.reason = reason
