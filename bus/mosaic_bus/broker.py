"""The broker: takes messages in on ROUTER, checks them, fans them out on XPUB.

An XSUB/XPUB proxy silently drops messages that a client sends right after connecting. A DEALER waits until it is
connected, so no message is lost on the way in.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from typing import IO, TYPE_CHECKING

import msgpack
import zmq

from mosaic_bus.connections import Connections
from mosaic_bus.errors import BadMessageError, CannotBindError
from mosaic_bus.home import hold_lock
from mosaic_bus.logs import FirstTime, Logger
from mosaic_bus.wire import envelope
from mosaic_bus.wire.sending import send_now

if TYPE_CHECKING:
    from mosaic_bus.wire.address import Address

__all__ = ["Broker"]

_log = Logger()

# Messages kept for a slow subscriber before ZeroMQ drops messages for that subscriber. A telemetry batch has at most
# 128 KiB, so a subscriber that never reads costs at most 64 MB. ZeroMQ learns in steps of half the mark what a
# subscriber has read: 250 messages in flight are safe, 500 are not.
SUBSCRIBER_HIGH_WATER_MARK = 500
PUBLISHER_HIGH_WATER_MARK = 500
# Messages forwarded before subscriptions and the stop signal are checked again.
_BURST = 100
# Parts of a message that the broker reads: topic and header.
_LOOKED_AT = 2
_LONGEST_SUBSCRIPTION = 64 * 1024
_WELCOME = b"~welcome."


class Broker:
    """Forwards messages until it is stopped; runs in a thread of its own."""

    def __init__(self, address: Address, epoch: int) -> None:
        self.address = address
        self.epoch = epoch
        self.counters: Counter[str] = Counter({"received": 0, "published": 0, "refused": 0, "bytes": 0})
        self._lock: IO[str] | None = None
        self.subscriptions: Counter[bytes] = Counter()
        self._stamper = envelope.Stamper("broker.wire", epoch)
        self._context = zmq.Context()
        self._first_time = FirstTime()
        self._thread: threading.Thread | None = None
        self.failure: BaseException | None = None

    def start(self) -> None:
        """Bind both sockets and start forwarding; raise a `BusError` if that fails."""
        self.address.require_private()
        if (folder := self.address.socket_folder) is not None:
            # ZeroMQ silently takes over a socket file that another process uses.
            self._lock = hold_lock(folder / "broker.lock", "broker")
        self._router = self._context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.RCVHWM, PUBLISHER_HIGH_WATER_MARK)
        self._router.setsockopt(zmq.MAXMSGSIZE, envelope.MAX_MESSAGE_BYTES)
        self._router.setsockopt(zmq.LINGER, 0)
        self._xpub = self._context.socket(zmq.XPUB)
        self._xpub.setsockopt(zmq.SNDHWM, SUBSCRIBER_HIGH_WATER_MARK)
        self._xpub.setsockopt(zmq.XPUB_VERBOSER, 1)
        self._xpub.setsockopt(zmq.LINGER, 200)
        self._xpub.setsockopt(zmq.MAXMSGSIZE, _LONGEST_SUBSCRIPTION)
        self._wake_out = self._context.socket(zmq.PAIR)
        self._wake_out.bind("inproc://stop")
        self._wake_in = self._context.socket(zmq.PAIR)
        self._wake_in.connect("inproc://stop")
        self._connections = Connections(self.counters, self._router, self._xpub)
        self._bind(self._router, self.address.ingress)
        self._bind(self._xpub, self.address.egress)
        self._thread = threading.Thread(target=self._run, name="broker", daemon=True)
        self._thread.start()

    def _bind(self, socket: zmq.Socket[bytes], endpoint: str) -> None:
        socket.setsockopt(zmq.IPV6, int(self.address.is_ipv6))
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise CannotBindError(endpoint, error.strerror) from error

    def stop(self) -> None:
        """Stop forwarding, close and remove the sockets."""
        if self._thread is not None and self._thread.is_alive():
            with contextlib.suppress(zmq.ZMQError):
                self._wake_in.send(b"", zmq.NOBLOCK)
            self._thread.join()
        self._wake_in.close(0)
        self._context.term()
        if (folder := self.address.socket_folder) is not None:
            for name in ("in.sock", "out.sock"):
                (folder / name).unlink(missing_ok=True)
        if self._lock is not None:
            self._lock.close()

    def _run(self) -> None:
        try:
            self._forward()
        except BaseException as error:
            self.failure = error
        finally:
            self._connections.close()
            self._router.close()
            self._xpub.close()
            self._wake_out.close()

    def _forward(self) -> None:
        poller = zmq.Poller()
        for socket in (self._router, self._xpub, self._wake_out):
            poller.register(socket, zmq.POLLIN)
        for monitor in self._connections.monitors:
            poller.register(monitor, zmq.POLLIN)
        while True:
            ready = dict(poller.poll())
            # A new connection must be known before its subscriptions are counted.
            if self._xpub in ready or not self._connections.monitors.isdisjoint(ready):
                self._connections.look()
            if self._xpub in ready:
                self._take_subscription(self._xpub.recv(copy=False))
            if self._router in ready:
                with contextlib.suppress(zmq.Again):
                    for _ in range(_BURST):
                        self._take_message(self._receive())
            if self._wake_out in ready:
                return

    def _receive(self) -> list[zmq.Frame]:
        """Receive the next message: its sender and its parts. Discards parts beyond MAX_PARTS + 1."""
        frames = [part := self._router.recv(zmq.NOBLOCK, copy=False)]
        while part.more:
            part = self._router.recv(copy=False)
            if len(frames) <= envelope.MAX_PARTS + 1:
                frames.append(part)
        return frames

    def _take_message(self, frames: list[zmq.Frame]) -> None:
        counters = self.counters
        counters["received"] += 1
        parts = frames[1:]
        try:
            # Only topic and header are read here; buffers pass through without a copy.
            size = envelope.check_size(parts)
            envelope.check([part.bytes if place < _LOOKED_AT else b"" for place, part in enumerate(parts)])
        except BadMessageError as error:
            self._refuse(frames[0].bytes, error)
            return
        counters["bytes"] += size
        # XPUB never blocks: if a subscriber's queue is full, it drops the message for that subscriber.
        send_now(self._xpub, parts, copy=False)
        counters["published"] += 1

    def _refuse(self, identity: bytes, error: BadMessageError) -> None:
        self.counters["refused"] += 1
        self.counters[f"refused_{error.code}"] += 1
        if self._first_time(identity):
            _log.warning("refused", source=identity.hex(), code=error.code, reason=str(error))
        message = envelope.Message("error.", self._stamper.stamp("error."), {"code": error.code, "message": str(error)})
        with contextlib.suppress(zmq.ZMQError):
            self._router.send_multipart([identity, *envelope.encode(message)], zmq.NOBLOCK)

    def _take_subscription(self, part: zmq.Frame) -> None:
        frame = part.bytes
        if not frame or frame[0] not in (0, 1):
            return
        self._connections.subscribed(part, more=frame[0] == 1)
        topic = frame[1:]
        if frame[0] == 0:
            self.subscriptions[topic] -= 1
            if self.subscriptions[topic] <= 0:
                del self.subscriptions[topic]
            return
        self.subscriptions[topic] += 1
        if topic.startswith(_WELCOME) and topic.endswith(b".") and topic.isascii():
            name = topic.decode("ascii")
            header = self._stamper.stamp(name)
            self._stamper.forget(name)
            payload = msgpack.packb({"protocol": envelope.PROTOCOL_VERSION, "broker_epoch": self.epoch})
            self._xpub.send_multipart([topic, header.pack(), payload])
