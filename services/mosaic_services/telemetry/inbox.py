"""The bounded queue between bus and writer. A batch that does not fit is dropped, counted and requested again."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from mosaic_bus.messages import Batch, StreamTails

__all__ = ["Arrival", "Inbox"]


class Arrival(NamedTuple):
    """A batch with its lines."""

    batch: Batch
    data: bytes
    repair: bool


class Inbox:
    """A queue from the thread that reads the bus to the thread that writes the store."""

    def __init__(self, max_bytes: int, clock: Callable[[], float]) -> None:
        self.max_bytes = max_bytes
        self.dropped = 0
        self.bytes = 0
        self._clock = clock
        self._arrivals: deque[Arrival] = deque()
        self._tails: dict[str, StreamTails] = {}
        self._closed = False
        self._changed = threading.Condition()

    def put(self, arrival: Arrival) -> bool:
        """Queue a batch; if there is no room, count it as dropped and return False."""
        with self._changed:
            if self.bytes + len(arrival.data) > self.max_bytes and self._arrivals:
                self.dropped += 1
                return False
            self._arrivals.append(arrival)
            self.bytes += len(arrival.data)
            self._changed.notify()
        return True

    def announce(self, tails: StreamTails) -> None:
        """Keep the newest announcement of each host."""
        with self._changed:
            self._tails[tails.host] = tails
            self._changed.notify()

    def take(self, until: float, not_before: float, enough: int) -> tuple[list[Arrival], list[StreamTails]]:
        """Wait until something arrives or `until` has come, then gather more until `not_before` or `enough` bytes."""
        with self._changed:
            while not (self._arrivals or self._tails or self._closed) and (left := until - self._clock()) > 0:
                self._changed.wait(left)
            while self.bytes < enough and not self._closed and (left := not_before - self._clock()) > 0:
                self._changed.wait(left)
            arrivals, tails = list(self._arrivals), list(self._tails.values())
            self._arrivals.clear()
            self._tails.clear()
            self.bytes = 0
        return arrivals, tails

    def discard(self) -> None:
        """Drop what is queued; it will be requested again."""
        with self._changed:
            self.dropped += len(self._arrivals)
            self._arrivals.clear()
            self.bytes = 0

    def wait_closed(self, seconds: float) -> bool:
        """Wait for some seconds, or until the inbox is closed; return whether it is."""
        deadline = self._clock() + seconds
        with self._changed:
            while not self._closed and (left := deadline - self._clock()) > 0:
                self._changed.wait(left)
            return self._closed

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    def close(self) -> None:
        """Let the writer store what is queued and end."""
        with self._changed:
            self._closed = True
            self._changed.notify()
