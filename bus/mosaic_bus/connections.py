"""The broker's connections: how many there are, and how many subscriptions each has.

ZeroMQ aborts the whole process when it runs out of file descriptors, and keeps as many subscriptions as a peer sends.
So the broker closes connections that come while descriptors run short, and those with too many subscriptions. ZeroMQ
offers no way to tell the peer why; it is logged and counted here.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import zmq
from zmq.utils.monitor import parse_monitor_message

from mosaic_bus.logs import Logger

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MAX_SUBSCRIPTIONS", "Connections"]

_log = Logger()

MAX_SUBSCRIPTIONS = 10_000
# Descriptors that stay free, as a share of the limit. ZeroMQ accepts in a thread of its own, so a burst of connections
# may take some of them before the broker looks.
_RESERVED = 1 / 4
_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED


class Connections:
    """Counts the connections of some sockets by their file descriptors; `counters` gets what was closed."""

    def __init__(self, counters: Counter[str], *sockets: zmq.Socket[bytes]) -> None:
        self._counters = counters
        self._sockets = sockets
        # Readable when `look` has something to do.
        self.monitors = {each.get_monitor_socket(_EVENTS) for each in sockets}
        self._open: set[int] = set()
        self._subscriptions: Counter[int] = Counter()
        self._full = False
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        used = sum(1 for _ in Path("/proc/self/fd").iterdir())
        self.most = limit - used - int(limit * _RESERVED)

    def close(self) -> None:
        """Stop counting, before the sockets are closed."""
        for watched in self._sockets:
            watched.disable_monitor()
        for monitor in self.monitors:
            monitor.close(0)

    def look(self) -> None:
        """Take in connections that were opened and closed; close new ones that are too many."""
        for event, descriptor in self._events():
            if event != zmq.EVENT_ACCEPTED:
                self._open.discard(descriptor)
            else:
                self._open.add(descriptor)
                if len(self._open) > self.most:
                    self._refuse(descriptor)
            self._subscriptions.pop(descriptor, None)
        self._full = self._full and len(self._open) >= self.most

    def subscribed(self, frame: zmq.Frame, *, more: bool) -> None:
        """Count a subscription, or one less, of the connection that it came from."""
        try:
            descriptor = int(frame.get(zmq.SRCFD))
        except zmq.ZMQError:  # ZeroMQ unsubscribes for a connection that has gone
            return
        self._subscriptions[descriptor] += 1 if more else -1
        if self._subscriptions[descriptor] > MAX_SUBSCRIPTIONS:
            _log.warning("connection closed: too many subscriptions", most=MAX_SUBSCRIPTIONS, peer=_peer(frame))
            self._subscriptions.pop(descriptor)
            self._counters["closed_subscribers"] += 1
            _shut(descriptor)

    def _refuse(self, descriptor: int) -> None:
        if not self._full:
            _log.warning("too many connections: new ones are closed", most=self.most)
        self._full = True
        self._counters["refused_connections"] += 1
        _shut(descriptor)

    def _events(self) -> Iterator[tuple[int, int]]:
        for monitor in self.monitors:
            with contextlib.suppress(zmq.Again):
                while True:
                    event = parse_monitor_message(monitor.recv_multipart(zmq.NOBLOCK))
                    yield int(event["event"]), int(event["value"])


def _shut(descriptor: int) -> None:
    """Shut a connection down; ZeroMQ then closes it as if the peer had."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
        connection.shutdown(socket.SHUT_RDWR)


def _peer(frame: zmq.Frame) -> str:
    """Who is at the other end: an address or, on a Unix socket, user, group and process."""
    try:
        return str(frame.get("Peer-Address"))
    except zmq.ZMQError:
        return "unknown"
