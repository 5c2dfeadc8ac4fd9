"""Queries that wait for their turn: bounded per client and in all, and served to clients in rotation.

A flood from one client delays its own queries and nobody else's. Pure: time comes in as an argument.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mosaic_bus.wire.envelope import Message

__all__ = ["QueryQueue"]

# Queries of one client that may wait, and those of all clients together.
PER_CLIENT = 32
IN_ALL = 512
# A client repeats a query every second until it is answered: one that does not has given up, or has gone.
GONE_AFTER_S = 3.0


@dataclass
class _Waiting:
    message: Message
    heard_at: float


class QueryQueue:
    """One queue per client."""

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self.dropped = 0
        self._waiting: dict[str, dict[str, _Waiting]] = {}
        self._length = 0
        self._running: Counter[str] = Counter()

    def offer(self, client: str, message: Message, now: float) -> bool:
        """Let a query wait, or note that it was repeated; False if there are too many."""
        queue = self._waiting.setdefault(client, {})
        if known := queue.get(message.header.id):
            known.heard_at = now
            return True
        if len(queue) >= PER_CLIENT or self._length >= IN_ALL:
            if not queue:
                del self._waiting[client]
            return False
        queue[message.header.id] = _Waiting(message, now)
        self._length += 1
        return True

    def take(self, now: float) -> tuple[str, Message] | None:
        """Take the next query to answer; None if none may start now."""
        if self._running.total() >= self.at_once:
            return None
        # One client alone never takes all places: a query of another can always start at once.
        share = max(1, self.at_once - 1)
        for client in list(self._waiting):
            if self._running[client] >= share:
                continue
            queue = self._waiting.pop(client)
            found = None
            while queue and found is None:
                waiting = queue.pop(next(iter(queue)))
                self._length -= 1
                if now - waiting.heard_at > GONE_AFTER_S:
                    self.dropped += 1
                else:
                    found = waiting
            if queue:
                self._waiting[client] = queue  # at the end: it has had its turn
            if found is not None:
                self._running[client] += 1
                return client, found.message
        return None

    def done(self, client: str) -> None:
        """Note that a query of a client has been answered."""
        self._running[client] -= 1
        if not self._running[client]:
            del self._running[client]
