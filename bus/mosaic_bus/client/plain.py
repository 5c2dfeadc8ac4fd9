"""A plain synchronous front to the bus, for scripts and notebooks."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Self, TypedDict, TypeVar

from mosaic_bus.client.connection import BusClient, Subscription
from mosaic_bus.client.follower import Follower
from mosaic_bus.errors import BusError, NotConnectedError
from mosaic_bus.home import Home
from mosaic_bus.messages import Model

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Iterator
    from concurrent.futures import Future
    from typing import Unpack

    from mosaic_bus.client.live import Changes
    from mosaic_bus.commands import Command
    from mosaic_bus.frames.reader import Frame
    from mosaic_bus.messages import HostState, RunState, RunSummary
    from mosaic_bus.wire.address import Address
    from mosaic_bus.wire.envelope import Message

__all__ = ["Bus", "PlainFollower"]

_QUEUE_LENGTH = 10_000

Result = TypeVar("Result", bound=Model)
Value = TypeVar("Value")


class Bus:
    """A connected bus without `await`.

    It has an event loop in a thread of its own, so it also works where a loop already runs (notebooks).

        with Bus() as bus:
            print(bus.request("scheduler", Runs()).runs)
            for message in bus.listen("summary.", timeout=5):
                print(message.topic, message.payload)
    """

    def __init__(self, address: Address | None = None, connect_timeout: float = 5.0) -> None:
        self.client = BusClient(address or Home.find().address())
        self._connect_timeout = connect_timeout
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mosaic-bus", daemon=True)
        self._thread.start()
        try:
            self.call(self.client.connect(connect_timeout))
        except BaseException:
            self._end_loop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def request(self, service: str, command: Command[Result], timeout: float = 10.0) -> Result:
        """Send a command and return its result; raise `CommandRefusedError` with the reason."""
        return self.call(self.client.request(service, command, timeout))

    def begin(self, coroutine: Coroutine[object, object, Value]) -> Future[Value]:
        """Run a coroutine on the bus's loop; return its future."""
        if not self._thread.is_alive():
            coroutine.close()
            raise BusError("this bus is closed: open another")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def listen(self, *prefixes: str, timeout: float | None = None) -> Iterator[Message]:
        """Yield all messages sent from now on; end after `timeout` seconds without one."""
        subscription = self.call(self._subscribe(prefixes))
        return self._iterate(subscription, timeout)

    def frames(
        self, run: str, stream: str | None = None, *, remote: bool = False, timeout: float | None = None
    ) -> Iterator[Frame]:
        """Yield a run's frames as they come; end with the run, or after `timeout` seconds without one.

        They come from shared memory if the run is on this machine, else (or if `remote`) as JPEG over the bus. Raise
        `NoAnswerError` if no frame came for a minute and the services were silent as long.
        """
        from mosaic_bus.frames.feed import FrameFeed  # noqa: PLC0415 - needs numpy, which takes a moment

        with FrameFeed(self, run, stream, remote=remote) as feed:
            yield from feed.frames(timeout)

    def follow(self, **options: Unpack[FollowOptions]) -> PlainFollower:
        """Follow runs and hosts, with the options of `Follower`; use it as a context manager."""
        return PlainFollower(self, **options)

    def subscribe(self, *prefixes: str, max_queue: int) -> Subscription:
        """Receive some topics, with `wait_for`; when `max_queue` messages wait, the oldest are dropped."""
        return self.call(self._subscribe(prefixes, max_queue))

    def wait_for(self, subscription: Subscription, timeout: float) -> Message | None:
        """Wait for the next message of a subscription; None if none came in time."""
        return self.call(subscription.next(timeout))

    def unsubscribe(self, subscription: Subscription) -> None:
        """Stop receiving; does no harm after the bus was closed."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(subscription.close)

    def _iterate(self, subscription: Subscription, timeout: float | None) -> Iterator[Message]:
        try:
            while not subscription.closed:
                message = self.wait_for(subscription, 1.0 if timeout is None else timeout)
                if message is not None:
                    yield message
                elif timeout is not None:
                    return
        finally:
            self.unsubscribe(subscription)  # An iterator may outlive its bus.

    async def _subscribe(self, prefixes: tuple[str, ...], max_queue: int = _QUEUE_LENGTH) -> Subscription:
        subscription = self.client.subscribe(*prefixes, max_queue=max_queue)
        try:
            async with asyncio.timeout(self._connect_timeout):
                await self.client.synced()
        except TimeoutError:
            subscription.close()
            raise NotConnectedError(self.client.address.egress, self._connect_timeout) from None
        return subscription

    def close(self) -> None:
        """Disconnect."""
        if self._thread.is_alive():
            self.call(self.client.close())
            self._end_loop()

    def _end_loop(self) -> None:
        self.call(self._end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end_tasks(self) -> None:
        """Cancel what still runs, such as a live view that was closed just now, and wait until it has ended."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_default_executor()

    def call(self, coroutine: Coroutine[object, object, Value]) -> Value:
        """Run a coroutine of `client` and return its result."""
        future = self.begin(coroutine)
        try:
            return future.result()
        except BaseException:
            # Ctrl-C ends the wait and cancels the coroutine.
            future.cancel()
            raise


class FollowOptions(TypedDict, total=False):
    """The options of `Follower`."""

    runs: Iterable[str]
    group: str
    hosts: bool
    summaries: bool
    final_limit: int


class PlainFollower:
    """A live view of runs and hosts without `await`.

    with bus.follow() as view:
        while view.wait(timeout=60):
            print(view.counts)
    """

    def __init__(self, bus: Bus, **options: Unpack[FollowOptions]) -> None:
        self._bus = bus
        self._revision = 0

        async def begin() -> Follower:
            return await Follower(bus.client, **options).__aenter__()

        self._follower = bus.call(begin())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # The view changes in the thread of the bus. Copies are made in one step of the interpreter, so they are whole.

    @property
    def runs(self) -> dict[str, RunState]:
        """Runs by id, as they are now."""
        return dict(self._follower.view.runs)

    @property
    def summaries(self) -> dict[str, RunSummary]:
        """Summaries by the id of their run."""
        return dict(self._follower.view.summaries)

    @property
    def hosts(self) -> dict[str, HostState]:
        """Hosts by name."""
        return dict(self._follower.view.hosts)

    @property
    def counts(self) -> dict[str, int]:
        """State -> how many runs."""
        return self._bus.call(self._counts())

    @property
    def silent(self) -> dict[str, float]:
        """Services that have not been heard for some seconds, with the seconds."""
        return self._follower.silent()

    def wait(self, timeout: float | None = None) -> Changes:
        """Wait for changes since the last call; at first, all that is known. They are empty if there were none."""
        changes = self._bus.call(self._follower.wait(self._revision, timeout))
        self._revision = changes.revision
        return changes

    def close(self) -> None:
        """Stop following; does no harm after the bus was closed.

        It does not wait for that: an unfinished iterator over frames is closed by the garbage collector, which
        may run in the thread of the bus itself, or in a forked child where that thread does not exist.
        """
        with contextlib.suppress(BusError):
            self._bus.begin(self._follower.close())

    async def _counts(self) -> dict[str, int]:
        return self._follower.view.counts
