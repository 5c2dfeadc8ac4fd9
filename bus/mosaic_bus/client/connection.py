"""The asynchronous client of the bus: publish, subscribe, send commands and await their answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, OrderedDict, deque
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast

import zmq
import zmq.asyncio
from pydantic import ValidationError

from mosaic_bus import topics
from mosaic_bus.connections import MAX_SUBSCRIPTIONS
from mosaic_bus.errors import (
    BadAddressError,
    BadMessageError,
    CommandRefusedError,
    NoAnswerError,
    NotConnectedError,
    TooManySubscriptionsError,
)
from mosaic_bus.logs import FirstTime, Logger
from mosaic_bus.messages import Model
from mosaic_bus.refusals import RefusalCode
from mosaic_bus.wire import envelope
from mosaic_bus.wire.envelope import Message, Stamper
from mosaic_bus.wire.sending import send_now

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mosaic_bus.commands import Command
    from mosaic_bus.wire.address import Address

__all__ = ["BusClient", "Subscription"]

_log = Logger()

Result = TypeVar("Result", bound=Model)

# Seconds without an answer before the same command is sent again.
_RESEND_AFTER_S = 1.0
# Pause before a query is sent again to a busy service.
_BUSY_WAIT_S = 0.2
_QUEUE_LENGTH = 10_000
# Seconds before asking for another welcome: the broker drops one if our queue there is full.
_WELCOME_AFTER_S = 1.0
# Messages read before other tasks get a turn.
_BURST = 100
# Above this size, handing the bytes to ZeroMQ is cheaper than copying them.
_COPIED_BYTES = 65_536
_TOPICS_REMEMBERED = 20_000


class Subscription:
    """Messages of some topics: an async iterator and a context manager that counts what it dropped."""

    def __init__(self, client: BusClient, prefixes: tuple[str, ...], max_queue: int) -> None:
        self.prefixes = prefixes
        # Messages discarded here because the queue was full, and messages that never arrived.
        self.dropped = 0
        self.missed = 0
        self._client = client
        self._queue: deque[Message] = deque()
        self._max_queue = max_queue
        self._arrived = asyncio.Event()
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        while not self._queue:
            if self._closed:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        return self._queue.popleft()

    async def next(self, timeout: float) -> Message | None:
        """Wait for the next message; None if none came in time."""
        with contextlib.suppress(TimeoutError, StopAsyncIteration):
            async with asyncio.timeout(timeout):
                return await self.__anext__()
        return None

    def take_all(self) -> list[Message]:
        """Return all queued messages without waiting."""
        taken = list(self._queue)
        self._queue.clear()
        return taken

    @property
    def closed(self) -> bool:
        """Whether no more messages will arrive; queued ones can still be taken."""
        return self._closed

    def close(self) -> None:
        """Stop receiving; queued messages can still be taken."""
        if not self._closed:
            self._closed = True
            self._arrived.set()
            self._client._forget_subscription(self)  # noqa: SLF001 - two halves of one thing

    async def __aenter__(self) -> Self:
        await self._client.synced()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def _offer(self, message: Message) -> None:
        if len(self._queue) >= self._max_queue:
            self._queue.popleft()
            self.dropped += 1
            self._client.counters["dropped"] += 1
        self._queue.append(message)
        self._arrived.set()


class BusClient:
    """A connection to the broker. Use it with `async with BusClient(address) as bus:`."""

    def __init__(self, address: Address, source: str | None = None, epoch: int = 1) -> None:
        self.id = envelope.new_id()
        self.address = address
        self.source = source or f"client.{self.id}"
        self.counters: Counter[str] = Counter({"received": 0, "published": 0, "dropped": 0, "missed": 0, "bad": 0})
        self.on_welcome: list[Callable[[], None]] = []
        self._stamper = Stamper(self.source, epoch)
        self._subscriptions: list[Subscription] = []
        self._prefix_uses: Counter[str] = Counter()
        self._answers: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._welcomes: dict[str, asyncio.Event] = {}
        # (source, topic) -> (epoch, seq) of its newest message; the least recently heard topics are forgotten.
        self._last_seq: OrderedDict[tuple[str, str], tuple[int, int]] = OrderedDict()
        self._tasks: list[asyncio.Task[None]] = []
        self._context: zmq.asyncio.Context | None = None
        self._first_time = FirstTime()

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def connect(self, timeout: float | None = 5.0) -> None:
        """Connect and wait until the broker has welcomed us; `timeout=None` waits for ever."""
        self._context = context = zmq.asyncio.Context()
        self._out = context.socket(zmq.DEALER)
        self._in = context.socket(zmq.SUB)
        # The same sockets without futures: non-blocking calls are several times faster on them.
        self._out_now: zmq.Socket[bytes] = zmq.Socket.shadow(self._out.underlying)
        self._in_now: zmq.Socket[bytes] = zmq.Socket.shadow(self._in.underlying)
        for socket in (self._out, self._in):
            socket.setsockopt(zmq.IPV6, int(self.address.is_ipv6))
            socket.setsockopt(zmq.LINGER, 500)
            socket.setsockopt(zmq.RECONNECT_IVL, 20)
            socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
        # Queue only for a connected broker: unsent messages are counted, not kept until they are stale.
        self._out.setsockopt(zmq.IMMEDIATE, 1)
        self._out.setsockopt(zmq.SNDHWM, 500)
        self._in.setsockopt(zmq.RCVHWM, 5000)
        # Subscriptions go out through this queue; ZeroMQ silently drops those that do not fit.
        self._in.setsockopt(zmq.SNDHWM, 0)
        try:
            self._out.connect(self.address.ingress)
            self._in.connect(self.address.egress)
            self._subscribe_prefix(topics.reply(self.id))
            self._subscribe_prefix(topics.welcome(self.id))
            self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._read_refusals())]
            async with asyncio.timeout(timeout):
                await self.synced()
                await cast("Any", self._out).poll(flags=zmq.POLLOUT)
        except TimeoutError:
            await self.close()
            raise NotConnectedError(self.address.ingress, timeout or 0) from None
        except zmq.ZMQError as error:
            await self.close()
            raise BadAddressError(self.address.ingress, error.strerror) from error
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Send queued messages, then disconnect."""
        for subscription in list(self._subscriptions):
            subscription.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self._context is not None:
            self._out.close()
            self._in.close()
            await asyncio.to_thread(self._context.term)
            self._context = None

    # ── publishing ──────────────────────────────────────────────────────────────────────────────

    def publish(
        self,
        topic: str,
        body: Model | dict[str, Any],
        buffers: Iterable[bytes] = (),
        *,
        cor: str | None = None,
        message_id: str | None = None,
    ) -> bool:
        """Send a message; return False, and count it, if the broker has no room."""
        payload = body.model_dump(mode="json") if isinstance(body, Model) else body
        return self.publish_packed(topic, envelope.pack(payload), buffers, cor=cor, message_id=message_id)

    def publish_packed(
        self,
        topic: str,
        payload: bytes,
        buffers: Iterable[bytes] = (),
        *,
        cor: str | None = None,
        message_id: str | None = None,
    ) -> bool:
        """Like `publish`, with a payload that is msgpack already."""
        header = self._stamper.stamp(topic, cor, message_id)
        parts = [envelope.encode_topic(topic), header.pack(), payload, *buffers]
        size = envelope.check_size(parts)
        try:
            send_now(self._out_now, parts, copy=size < _COPIED_BYTES)
            sent = True
        except zmq.Again:
            sent = False
        self.counters["published" if sent else "unsent"] += 1
        # Sending may consume the signal that the socket is readable, so the reading task would never wake.
        while cast("int", self._out_now.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._take_refusal(self._out_now.recv_multipart(zmq.NOBLOCK))
        return sent

    # ── commands ────────────────────────────────────────────────────────────────────────────────

    async def request(self, service: str, command: Command[Result], timeout: float = 10.0) -> Result:
        """Send a command until it is answered and return its result; raise `CommandRefusedError` if it is refused."""
        return await self.request_as(envelope.new_id(), service, command, timeout)

    async def request_as(self, command_id: str, service: str, command: Command[Result], timeout: float) -> Result:
        """Like `request`, with an id of your own: a command is carried out once per id, however often it is sent."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        answer: asyncio.Future[dict[str, Any]] = loop.create_future()
        self._answers[command_id] = answer
        body = {"command": command.name, "reply_to": self.id, "args": command.model_dump(mode="json")}
        try:
            while (left := deadline - loop.time()) > 0:
                sent = self.publish(topics.command(service), body, message_id=command_id)
                wait = min(left, _RESEND_AFTER_S if sent else 0.05)
                done, _ = await asyncio.wait([answer], timeout=wait)
                if done:
                    try:
                        return self._read_answer(answer.result(), command)
                    except CommandRefusedError as error:
                        if error.code != RefusalCode.BUSY or deadline - loop.time() <= _BUSY_WAIT_S:
                            raise
                    self._answers[command_id] = answer = loop.create_future()
                    await asyncio.sleep(_BUSY_WAIT_S)
            raise NoAnswerError(service, command.name, timeout)
        finally:
            del self._answers[command_id]

    @staticmethod
    def _read_answer(payload: dict[str, Any], command: Command[Result]) -> Result:
        if payload.get("ok"):
            try:
                return cast("Result", command.result.model_validate(payload.get("result") or {}))
            except ValidationError as error:
                raise BadMessageError(f"the answer to {command.name!r} is not as documented: {error}") from error
        raise CommandRefusedError.received(payload.get("error"))

    # ── subscribing ─────────────────────────────────────────────────────────────────────────────

    def subscribe(self, *prefixes: str, max_queue: int = _QUEUE_LENGTH) -> Subscription:
        """Receive all messages whose topic starts with one of the prefixes. `async with` waits until it is in force."""
        subscription = Subscription(self, prefixes, max_queue)
        self._subscriptions.append(subscription)
        for prefix in prefixes:
            self._subscribe_prefix(prefix)
        return subscription

    async def synced(self) -> None:
        """Wait until the broker has seen every subscription made so far."""
        while True:
            topic = topics.welcome(envelope.new_id())
            self._welcomes[topic] = event = asyncio.Event()
            self._subscribe_prefix(topic)
            try:
                async with asyncio.timeout(_WELCOME_AFTER_S):
                    await event.wait()
                return
            except TimeoutError:
                continue
            finally:
                self._unsubscribe_prefix(topic)
                del self._welcomes[topic]

    def _subscribe_prefix(self, prefix: str) -> None:
        if len(self._prefix_uses) >= MAX_SUBSCRIPTIONS and prefix not in self._prefix_uses:
            raise TooManySubscriptionsError(MAX_SUBSCRIPTIONS)
        self._prefix_uses[prefix] += 1
        if self._prefix_uses[prefix] == 1:
            self._in.setsockopt(zmq.SUBSCRIBE, prefix.encode())

    def _unsubscribe_prefix(self, prefix: str) -> None:
        self._prefix_uses[prefix] -= 1
        if not self._prefix_uses[prefix]:
            del self._prefix_uses[prefix]
            if not self._in.closed:
                self._in.setsockopt(zmq.UNSUBSCRIBE, prefix.encode())

    def _forget_subscription(self, subscription: Subscription) -> None:
        self._subscriptions.remove(subscription)
        for prefix in subscription.prefixes:
            self._unsubscribe_prefix(prefix)
        # Messages that arrive without a subscription do not count as missed.
        kept = tuple({prefix for each in self._subscriptions for prefix in each.prefixes})
        for key in [key for key in self._last_seq if not key[1].startswith(kept)]:
            del self._last_seq[key]

    # ── reading ─────────────────────────────────────────────────────────────────────────────────

    async def _read(self) -> None:
        while True:
            self._take(await self._in.recv_multipart())
            # Reading without waiting never yields to other tasks, so bursts are bounded.
            with contextlib.suppress(zmq.Again):
                for _ in range(_BURST):
                    self._take(self._in_now.recv_multipart(zmq.NOBLOCK))
            await asyncio.sleep(0)

    def _take(self, parts: list[bytes]) -> None:
        try:
            message = envelope.decode(parts)
        except BadMessageError as error:
            self._complain(_source_of(parts), error.code, str(error))
            return
        self.counters["received"] += 1
        self._dispatch(message)

    def _dispatch(self, message: Message) -> None:
        topic = message.topic
        if topic.startswith("~welcome."):
            if event := self._welcomes.get(topic):
                event.set()
            elif topic == topics.welcome(self.id):
                for call in self.on_welcome:
                    try:
                        call()
                    except Exception:
                        _log.exception("on_welcome failed", source=self.source)
            return
        if message.header.cor and topic == topics.reply(self.id):
            answer = self._answers.get(message.header.cor)
            if answer is not None and not answer.done():
                answer.set_result(message.payload)
            return
        wanted = [each for each in self._subscriptions if topic.startswith(each.prefixes)]
        missed = self._count_missed(message) if wanted else 0
        for subscription in wanted:
            subscription.missed += missed
            subscription._offer(message)  # noqa: SLF001 - two halves of one thing

    def _count_missed(self, message: Message) -> int:
        header = message.header
        key = (header.src, message.topic)
        epoch, seq = self._last_seq.pop(key, (header.epoch, header.seq - 1))
        missed = max(0, header.seq - seq - 1) if epoch == header.epoch else 0
        self.counters["missed"] += missed
        self._last_seq[key] = (header.epoch, header.seq)
        if len(self._last_seq) > _TOPICS_REMEMBERED:
            self._last_seq.popitem(last=False)
        return missed

    async def _read_refusals(self) -> None:
        """Read our sending socket, on which the broker only reports refused messages."""
        while True:
            self._take_refusal(await self._out.recv_multipart())

    def _take_refusal(self, parts: list[bytes]) -> None:
        try:
            payload = envelope.decode(parts).payload
        except BadMessageError as error:
            payload = {"code": "unreadable", "message": str(error)}
        self.counters["refused"] += 1
        self._complain(self.source, str(payload.get("code")), str(payload.get("message")))

    def _complain(self, source: str, code: str, reason: str) -> None:
        self.counters["bad"] += 1
        if self._first_time((source, code)):
            _log.warning("bad message on the bus", code=code, reason=reason, source=source, reader=self.source)


def _source_of(parts: list[bytes]) -> str:
    """Return the sender of an unreadable message if its header can be read."""
    try:
        return envelope.decode_header(parts[1]).src
    except (BadMessageError, IndexError):
        return "unknown"
