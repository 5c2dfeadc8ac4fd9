"""Relays the newest frame of runs as JPEG: one request to the host for all readers, and nothing is queued."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, NamedTuple

from pydantic import ValidationError

from mosaic_bus import topics
from mosaic_bus.commands import WatchFrames
from mosaic_bus.errors import BusError
from mosaic_bus.messages import FrameHandle

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from mosaic_bus.client import BusClient

__all__ = ["Frames", "Picture", "Relay"]

QUALITY = 80
_RENEW_S = 2.0
_ANSWER_S = 5.0
_KEPT = 4
_MOST_BYTES = 8 * 1024 * 1024


class Picture(NamedTuple):
    """A frame and what is known of it."""

    handle: FrameHandle
    jpeg: bytes


class Relay:
    """The newest frame of each stream of a run. Readers ask for what is newer than what they have."""

    def __init__(self) -> None:
        self.readers = 0
        self.on_news: dict[tuple[object, int], Callable[[], None]] = {}
        self.newest: dict[str, tuple[int, Picture]] = {}
        self._count = 0
        self._news = asyncio.Event()

    def put(self, picture: Picture) -> None:
        """Keep a frame in place of the one before."""
        self._count += 1
        self.newest[picture.handle.stream] = (self._count, picture)
        self._news.set()
        self._news = asyncio.Event()
        for tell in list(self.on_news.values()):
            tell()

    def oldest_after(self, seen: int, stream: str | None = None) -> tuple[int, Picture] | None:
        """Return the first newest frame after a number, so that several streams take turns."""
        newer = [each for each in self.newest.values() if each[0] > seen]
        newer = [each for each in newer if stream is None or each[1].handle.stream == stream]
        return min(newer, key=lambda each: each[0], default=None)

    async def newer_than(self, seen: int, timeout: float) -> tuple[int, Picture | None]:
        """Wait for a frame after a number."""
        if (found := self.oldest_after(seen)) is None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._news.wait()
            found = self.oldest_after(seen)
        return (seen, None) if found is None else found


class Frames:
    """All relays, by run and size; each works while it has a reader."""

    def __init__(self, bus: BusClient, host_of: Callable[[str], str | None]) -> None:
        self._bus = bus
        self._host_of = host_of
        self._relays: dict[tuple[str, int], tuple[Relay, asyncio.Task[None]]] = {}

    @contextlib.asynccontextmanager
    async def watch(self, run: str, max_dim: int) -> AsyncIterator[Relay]:
        """Relay the frames of a run as long as this lasts."""
        relay = self.join(run, max_dim)
        try:
            yield relay
        finally:
            self.leave(run, max_dim)

    def join(self, run: str, max_dim: int) -> Relay:
        """Return the relay of a run, and start it for its first reader."""
        key = (run, max_dim)
        if key not in self._relays:
            relay = Relay()
            self._relays[key] = relay, asyncio.create_task(self._work(run, max_dim, relay))
        relay = self._relays[key][0]
        relay.readers += 1
        return relay

    def leave(self, run: str, max_dim: int) -> None:
        """Take a reader away; with the last one the relay ends."""
        relay, task = self._relays[run, max_dim]
        relay.readers -= 1
        if not relay.readers:
            del self._relays[run, max_dim]
            task.cancel()

    def close(self) -> None:
        """End all relays."""
        for _, task in self._relays.values():
            task.cancel()

    async def _work(self, run: str, max_dim: int, relay: Relay) -> None:
        topic = topics.picture(run, max_dim, QUALITY)
        subscription = self._bus.subscribe(topic, max_queue=_KEPT)
        renewal = asyncio.create_task(self._renew(run, max_dim))
        try:
            async for message in subscription:
                try:
                    handle = FrameHandle.model_validate(message.payload)
                    (jpeg,) = message.buffers
                except (ValidationError, ValueError):  # anybody can publish anything
                    continue
                if len(jpeg) <= _MOST_BYTES:
                    relay.put(Picture(handle, bytes(jpeg)))
        finally:
            renewal.cancel()
            subscription.close()

    async def _renew(self, run: str, max_dim: int) -> None:
        """Ask the host of the run for frames, again and again: it may change, and it may not have begun."""
        while True:
            host = self._host_of(run)
            if host is not None:
                with contextlib.suppress(BusError):
                    command = WatchFrames(run=run, max_dim=max_dim, quality=QUALITY)
                    await self._bus.request(topics.supervisor(host), command, timeout=_ANSWER_S)
            await asyncio.sleep(_RENEW_S)
