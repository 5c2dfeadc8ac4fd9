"""One page's WebSocket: it says what it wants and how much it can take; it gets the newest, and nothing queues."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from starlette.websockets import WebSocketDisconnect, WebSocketState

from mosaic_bus.errors import BusError, CommandRefusedError
from mosaic_bus.refusals import RefusalCode, explain
from mosaic_services.gateway.hub import Wish
from mosaic_services.masking import mask

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.websockets import WebSocket

    from mosaic_services.gateway.frames import Relay
    from mosaic_services.gateway.hub import Hub

__all__ = ["CREDITS", "PROTOCOL", "Page"]

PROTOCOL = 1
CREDITS = 32
"""Messages that a page gets before it says that it has read some."""
MOST_CREDITS = 1024
_MOST_WATCHES = 128
_MOST_BYTES = 64 * 1024
_LOG_LINES = 500
_SEND_S = 10.0
"""Time for a message to go out. A page that takes longer reads nothing."""
_RETRY_S = 2.0
"""Time until a question that got no answer is asked again."""
_IDLE_S = 60.0
"""Time without a credit after which a page is closed."""
# Codes of WebSocket closes.
UNREAD, BAD_MESSAGE = 4408, 4400

Id = Annotated[int, Field(ge=0, lt=2**31)]
RunId = Annotated[str, Field(min_length=1, max_length=64)]
Place = Annotated[int, Field(ge=0, lt=2**62)]


class _Said(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Credit(_Said):
    """The page has read some messages."""

    type: Literal["credit"]
    n: Annotated[int, Field(ge=1, le=MOST_CREDITS)]


class WatchStates(_Said):
    """Runs, summaries, hosts, services and builds, as they change."""

    type: Literal["watch_states"]


class WatchSeries(_Said):
    """Curves of a run: whole, or after a position that the page has."""

    type: Literal["watch_series"]
    id: Id
    run: RunId
    metrics: Annotated[list[Annotated[str, Field(max_length=500)]], Field(min_length=1, max_length=100)]
    agent: Annotated[str, Field(max_length=500)] | None = None
    max_points: Annotated[int, Field(ge=2, le=20_000)] = 2000
    since: Annotated[list[Place], Field(max_length=10_000)] = []


class WatchLog(_Said):
    """Lines of a log from a number on."""

    type: Literal["watch_log"]
    id: Id
    run: RunId
    attempt: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    start: Place = 0


class WatchEvents(_Said):
    """Events of an attempt, as their lines, from a number on."""

    type: Literal["watch_events"]
    id: Id
    run: RunId
    attempt: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    kinds: Annotated[list[Annotated[str, Field(max_length=100)]], Field(max_length=20)] = []
    start: Place = 0


class WatchFrames(_Said):
    """The newest frame of a run, whenever there is one."""

    type: Literal["watch_frames"]
    id: Id
    run: RunId
    stream: Annotated[str, Field(max_length=500)] | None = None
    max_dim: Literal[160, 320, 640, 1280] = 320


class Unwatch(_Said):
    """End a watch."""

    type: Literal["unwatch"]
    id: Id


Said = Credit | WatchStates | WatchSeries | WatchLog | WatchEvents | WatchFrames | Unwatch
_SAID: TypeAdapter[Said] = TypeAdapter(Annotated[Said, Field(discriminator="type")])


@dataclass
class _Curves:
    wish: Wish
    since: tuple[int, ...]
    due: bool = True
    failed_at: float = -_RETRY_S


@dataclass
class _Lines:
    """Lines of a log, or of a journal if `kinds` is not None."""

    run: str
    attempt: int | None
    start: int
    kinds: tuple[str, ...] | None = None
    due: bool = True
    failed_at: float = -_RETRY_S


@dataclass
class _Stream:
    run: str
    stream: str | None
    max_dim: int
    relay: Relay
    seen: int = 0


Asked = TypeVar("Asked", _Curves, _Lines)


@dataclass
class Page:
    """A connected page."""

    socket: WebSocket
    hub: Hub
    role: str
    credits: int = CREDITS
    _states: tuple[int, int] | None = None  # revisions of the view and the hub that it has; None: it wants none
    _silent: frozenset[str] = frozenset()  # the services that it knows to be silent
    # Set by a tick, since frames and credits wake the sender far more often than states may go out.
    _states_due: bool = True
    _watches: dict[int, _Curves | _Lines | _Stream] = field(default_factory=dict)
    # One for each task that sends: what telemetry answers late, or not at all, must not hold up states and frames.
    _wake_live: asyncio.Event = field(default_factory=asyncio.Event)
    _wake_curves: asyncio.Event = field(default_factory=asyncio.Event)
    _wake_lines: asyncio.Event = field(default_factory=asyncio.Event)
    _putting: asyncio.Lock = field(default_factory=asyncio.Lock)
    _starved_since: float | None = None

    def __hash__(self) -> int:
        """Pages differ by identity."""
        return id(self)

    async def serve(self) -> None:
        """Talk until one of both sides ends."""
        await self.socket.accept()
        about = {"type": "welcome", "protocol": PROTOCOL, "role": self.role, "credits": self.credits}
        if not await self._put(about):
            return
        self.hub.join(self, self._on_tick)
        # Tasks that only send do not notice that their client has gone, so another one reads.
        work = (
            self._read(),
            self._send(self._wake_live, self._send_states, self._send_frames),
            self._send(self._wake_curves, self._send_curves),
            self._send(self._wake_lines, self._send_lines),
        )
        tasks = [asyncio.create_task(each) for each in work]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            code = next((task.result() for task in done), None)
        finally:
            self.hub.leave(self)
            for watch in self._watches.values():
                self._end(watch)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if code is not None and self.socket.client_state is WebSocketState.CONNECTED:
            with contextlib.suppress(Exception):  # it may be gone
                async with asyncio.timeout(1.0):
                    await self.socket.close(code)

    # ── in ──────────────────────────────────────────────────────────────────────────────────────

    async def _read(self) -> int | None:
        while True:
            try:
                message = await self.socket.receive()
            except (WebSocketDisconnect, RuntimeError):
                return None
            if message["type"] == "websocket.disconnect":
                return None
            text = message.get("text") or ""
            if not text or len(text) > _MOST_BYTES:
                return BAD_MESSAGE
            try:
                self._take(_SAID.validate_json(text))
            except ValidationError as error:
                # What cannot be read may be of a newer page: say so, and end, since it would wait for ever.
                await self._put({"type": "error", "code": "invalid_message", "message": explain(error)})
                return BAD_MESSAGE
            self._wake()

    def _wake(self) -> None:
        for wake in (self._wake_live, self._wake_curves, self._wake_lines):
            wake.set()

    def _take(self, said: Said) -> None:
        match said:
            case Credit():
                self.credits = min(MOST_CREDITS, self.credits + said.n)
                self._starved_since = None
            case WatchStates():
                self._states, self._states_due = (-1, -1), True
            case WatchSeries():
                wish = Wish(said.run, tuple(said.metrics), said.agent, said.max_points)
                self._begin(said.id, _Curves(wish, tuple(said.since)))
            case WatchLog():
                self._begin(said.id, _Lines(said.run, said.attempt, said.start))
            case WatchEvents():
                self._begin(said.id, _Lines(said.run, said.attempt, said.start, tuple(said.kinds)))
            case WatchFrames():
                relay = self.hub.frames.join(said.run, said.max_dim)
                self._begin(said.id, _Stream(said.run, said.stream, said.max_dim, relay))
                relay.on_news[self, said.id] = self._wake_live.set
            case Unwatch():
                if (watch := self._watches.pop(said.id, None)) is not None:
                    self._end(watch, said.id)

    def _begin(self, number: int, watch: _Curves | _Lines | _Stream) -> None:
        if (before := self._watches.pop(number, None)) is not None:
            self._end(before, number)
        if len(self._watches) >= _MOST_WATCHES:
            oldest = next(iter(self._watches))
            self._end(self._watches.pop(oldest), oldest)
        self._watches[number] = watch

    def _end(self, watch: _Curves | _Lines | _Stream, number: int | None = None) -> None:
        if isinstance(watch, _Stream):
            for key in [key for key in watch.relay.on_news if key[0] is self and number in (None, key[1])]:
                del watch.relay.on_news[key]
            self.hub.frames.leave(watch.run, watch.max_dim)

    def _on_tick(self, grown: set[tuple[str, str]]) -> None:
        self._states_due = True
        for watch in self._watches.values():
            if isinstance(watch, _Curves):
                watch.due |= (watch.wish.run, "journal") in grown
            elif isinstance(watch, _Lines):
                watch.due |= (watch.run, "log" if watch.kinds is None else "journal") in grown
        self._wake()

    # ── out ─────────────────────────────────────────────────────────────────────────────────────

    async def _send(self, wake: asyncio.Event, *steps: Callable[[], Awaitable[bool]]) -> int | None:
        while True:
            await wake.wait()
            wake.clear()
            if self.credits <= 0:
                if self._is_starved():
                    return UNREAD
                continue
            for step in steps:
                if not await step():
                    return UNREAD

    def _is_starved(self) -> bool:
        """Whether the page has read nothing for long. The tick wakes the sender often enough to notice."""
        now = time.monotonic()
        self._starved_since = self._starved_since or now
        return now - self._starved_since > _IDLE_S

    async def _send_states(self) -> bool:
        view, hub = self.hub.view, self.hub
        if self._states is None or self.credits <= 0 or not self._states_due:
            return True
        self._states_due = False
        silent = hub.silent
        if self._states == (view.revision, hub.revision) and self._silent == silent.keys():
            return True
        # A page that is too far behind could not be told which runs are gone, so it begins anew.
        whole = self._states[0] < 0 or self._states[0] < view.forgotten
        changes = None if whole else view.changes_since(self._states[0])
        runs = set(view.runs) if changes is None else changes.runs
        hosts = set(view.hosts) if changes is None else changes.hosts
        message: dict[str, Any] = {
            "type": "states",
            "whole": whole,
            "runs": [view.runs[run].model_dump(mode="json") for run in runs if run in view.runs],
            "gone": [run for run in runs if run not in view.runs],
            "summaries": [view.summaries[run].model_dump(mode="json") for run in runs if run in view.summaries],
            "hosts": [view.hosts[host].model_dump(mode="json") for host in hosts if host in view.hosts],
            "counts": view.counts,
            "silent": silent,
        }
        if whole or self._states[1] != hub.revision:
            message["services"] = [each.model_dump(mode="json") for each in hub.services.values()]
            message["builds"] = [each.model_dump(mode="json") for each in hub.builds.values()]
            message["experiments"] = [each.model_dump(mode="json") for each in hub.experiments.values()]
        self._states, self._silent = (view.revision, hub.revision), frozenset(silent)
        return await self._spend(message)

    def _due(self, kind: type[Asked]) -> list[tuple[int, Asked]]:
        """Return the watches of a kind that may have something new."""
        latest = time.monotonic() - _RETRY_S
        watches = self._watches.items()
        return [
            (number, each)
            for number, each in watches
            if isinstance(each, kind) and each.due and each.failed_at <= latest
        ]

    async def _send_curves(self) -> bool:
        for number, watch in self._due(_Curves):
            if self.credits <= 0:
                return True
            watch.due = False
            try:
                found = await self.hub.curves(watch.wish, watch.since)
            except BusError as error:
                if not await self._say_failed(number, watch, error):
                    return False
                continue
            if self._watches.get(number) is not watch or tuple(found.position) == watch.since:
                continue  # nothing new, or the page has changed its mind
            if self.credits <= 0:  # they were spent meanwhile
                watch.due = True
                return True
            document = found.model_dump(mode="json")
            watch.since = tuple(found.position)
            if not await self._spend({"type": "series", "id": number, **document}):
                return False
        return True

    async def _send_lines(self) -> bool:
        for number, watch in self._due(_Lines):
            if self.credits <= 0:
                return True
            watch.due = False
            try:
                if watch.kinds is None:
                    page = await self.hub.log(watch.run, watch.attempt, watch.start, _LOG_LINES)
                else:
                    page = await self.hub.events(watch.run, watch.attempt, watch.kinds, watch.start, _LOG_LINES)
            except BusError as error:
                if not await self._say_failed(number, watch, error):
                    return False
                continue
            if not page.rows or self._watches.get(number) is not watch:
                continue
            if self.credits <= 0:  # they were spent meanwhile
                watch.due = True
                return True
            start, watch.start = watch.start, page.rows[-1]["number"] + 1
            watch.due = page.next is not None
            if watch.due:
                self._wake_lines.set()
            kind = "log" if watch.kinds is None else "events"
            place = {"start": start, "rows": page.rows, "next": watch.start}
            if not await self._spend({"type": kind, "id": number, "run": watch.run, **place}):
                return False
        return True

    async def _send_frames(self) -> bool:
        for number, watch in list(self._watches.items()):
            if not isinstance(watch, _Stream) or self.credits <= 0:
                continue
            if (found := watch.relay.oldest_after(watch.seen, watch.stream)) is None:
                continue
            watch.seen, picture = found
            about = {"type": "frame", "id": number, **picture.handle.model_dump(mode="json", exclude={"file"})}
            head = orjson.dumps(about)
            self.credits -= 1
            if not await self._put(len(head).to_bytes(4, "big") + head + picture.jpeg):
                return False
            if watch.relay.oldest_after(watch.seen, watch.stream) is not None:
                self._wake_live.set()
        return True

    async def _say_failed(self, number: int, watch: _Curves | _Lines, error: BusError) -> bool:
        """Tell why there is nothing. A run without events has none yet; the store may be away for a moment."""
        if isinstance(error, CommandRefusedError) and error.code == RefusalCode.UNKNOWN_RUN:
            return True
        watch.due, watch.failed_at = True, time.monotonic()
        if self.credits <= 0:
            return True
        code = str(error.code) if isinstance(error, CommandRefusedError) else "no_answer"
        return await self._spend({"type": "error", "id": number, "code": code, "message": str(error)})

    async def _spend(self, message: dict[str, Any]) -> bool:
        self.credits -= 1
        return await self._put(mask(message))

    async def _put(self, message: dict[str, Any] | bytes) -> bool:
        """Send; return False if the page does not take it."""
        try:
            async with asyncio.timeout(_SEND_S), self._putting:
                if isinstance(message, bytes):
                    await self.socket.send_bytes(message)
                else:
                    await self.socket.send_text(_dump(message))
        except (TimeoutError, WebSocketDisconnect, RuntimeError, OSError):
            return False
        return True


def _dump(message: dict[str, Any]) -> str:
    try:
        return orjson.dumps(message).decode()
    except TypeError:  # an integer beyond 64 bits
        return json.dumps(message)
