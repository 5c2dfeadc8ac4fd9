"""Keeps track of which states of runs are to be published, and when."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mosaic_services.scheduler.model import Run

__all__ = ["REPUBLISH_S", "Publications"]

# Interval in seconds at which the state of a run that is not final is repeated.
REPUBLISH_S = 10.0
# Maximum number of states published again per tick, so that a long queue does not flood the bus.
_AT_ONCE = 250


class Publications:
    """When each state was last published, which ones wait for it, and the version of the newest change."""

    def __init__(self, version: int) -> None:
        self.version = version
        # Run that is not final -> when its state was last published, oldest first.
        self._published: dict[str, float] = {}
        # Runs that changed together with many others: published in the next ticks, some at a time.
        self._postponed: dict[str, None] = {}

    def __contains__(self, run: str) -> bool:
        return run in self._published

    def changed(self, run: Run) -> None:
        """Give a run that changed a new version."""
        self.version += 1
        run.version = self.version

    def published(self, run: str, at: float) -> None:
        """Note when a state was published."""
        self.drop(run)
        self._published[run] = at

    def postpone(self, run: str) -> None:
        """Let a state be published in one of the next ticks."""
        self._postponed[run] = None

    def drop(self, run: str) -> None:
        """Publish a state no more."""
        self._postponed.pop(run, None)
        self._published.pop(run, None)

    def due(self, now: float) -> list[str]:
        """The runs whose state is to be published in this tick."""
        due = dict.fromkeys(islice(self._postponed, _AT_ONCE))
        for run, at in self._published.items():
            if at > now - REPUBLISH_S or len(due) >= _AT_ONCE:
                break
            due[run] = None
        return list(due)
