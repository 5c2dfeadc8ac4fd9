"""The broker's connections: how many there are, and how many subscriptions each has.

ZeroMQ aborts the whole process when it runs out of file descriptors while it accepts a connection on a Unix socket, and
keeps as many subscriptions as a peer sends. So the broker closes connections that come while descriptors run short, and
those with too many subscriptions. ZeroMQ offers no way to tell the peer why; it is logged and counted here.

ZeroMQ accepts in a thread of its own, faster than the broker looks. But it reports each connection first, and waits
while too many reports are unread; further peers then wait in the kernel. So a burst cannot take more descriptors than
there are unread reports, and that many are kept free.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import struct
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import zmq

from mosaic_bus.logs import Logger

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MAX_SUBSCRIPTIONS", "MOST_UNREAD", "Connections"]

_log = Logger()

MAX_SUBSCRIPTIONS = 10_000
# Unread reports of one socket at which ZeroMQ waits: its own high-water mark, which cannot be set, and the reader's.
MOST_UNREAD = 1000 + 1
# Descriptors that stay free: room for the unread reports of two sockets, and a share for all else.
_RESERVED = 2 * MOST_UNREAD + 46
_RESERVED_SHARE = 1 / 4
_REPORT = struct.Struct("=Hi")
_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED


class Connections:
    """Counts the connections of some sockets by their file descriptors; `counters` gets what was closed."""

    def __init__(self, counters: Counter[str], *sockets: zmq.Socket[bytes]) -> None:
        self._counters = counters
        self._sockets = sockets
        # Readable when `look` has something to do.
        self.monitors = {_monitor(each) for each in sockets}
        self._open: set[int] = set()
        self._subscriptions: Counter[int] = Counter()
        self._full = False
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        used = sum(1 for _ in Path("/proc/self/fd").iterdir())
        reserved = max(int(limit * _RESERVED_SHARE), _RESERVED)
        if reserved > limit // 2:
            reserved = limit // 2
            _log.warning("few open files are allowed: a burst of connections may end the broker", limit=limit)
        self.most = limit - used - reserved

    def close(self) -> None:
        """Stop counting, before the sockets are closed."""
        for _ in self._events():
            pass  # ZeroMQ may be waiting for that.
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
                    # `parse_monitor_message` would make an enum of each descriptor, which takes far longer.
                    event, descriptor = _REPORT.unpack(monitor.recv_multipart(zmq.NOBLOCK)[0])
                    yield event, descriptor


def _monitor(watched: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
    """Return a socket that receives a report of each connection of another."""
    endpoint = f"inproc://connections-{watched.FD}"
    watched.monitor(endpoint, _EVENTS)
    monitor: zmq.Socket[bytes] = watched.context.socket(zmq.PAIR)
    monitor.setsockopt(zmq.RCVHWM, 1)
    monitor.connect(endpoint)
    return monitor


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
