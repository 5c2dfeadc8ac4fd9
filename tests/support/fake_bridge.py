"""A fake of the supervisor's bridge that can lose, duplicate and reorder chosen batches.

It speaks the real protocol over a real broker; only the files and processes behind it are missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from stack import PATIENCE_S

from mosaic_bus import BusClient, topics
from mosaic_bus.messages import Batch, Position, StoredPositions, StreamKind, StreamTail, StreamTails

if TYPE_CHECKING:
    from collections.abc import Callable

    from mosaic_bus import Address

WINDOW_BYTES = 4 * 1024 * 1024
BATCH_LINES = 500


@dataclass
class File:
    """The lines of one stream, with the counts of sent and stored lines."""

    run: str
    kind: StreamKind = "journal"
    attempt: int = 1
    lines: list[bytes] = field(default_factory=list)
    offsets: list[int] = field(default_factory=lambda: [0])
    sent: int = 0
    repair: int | None = None
    stored: int = 0
    ended: bool = False
    final: bool = False

    def write(self, *lines: bytes) -> None:
        """Append lines."""
        self.lines += lines
        sizes = itertools.accumulate((len(line) + 1 for line in lines), initial=self.offsets[-1])
        next(sizes)
        self.offsets += sizes

    @property
    def whole(self) -> bool:
        """Whether the store has confirmed every line and the end of the stream."""
        return self.ended and self.final and self.stored == len(self.lines)


class FakeBridge:
    """Publishes files in batches, resends on request, and sends at most a window ahead of the store."""

    def __init__(
        self,
        address: Address,
        host: str = "fake",
        passes: Callable[[Batch, bool], int] = lambda _batch, _repair: 1,
        shuffle: Callable[[list[tuple[str, Batch, bytes]]], None] = lambda _messages: None,
    ) -> None:
        """`passes` returns the number of copies of a batch to send; `shuffle` reorders the messages of one round."""
        self.host = host
        self.bus = BusClient(address, source=topics.supervisor(host))
        self.files: list[File] = []
        self.resends = 0
        self.storing = True
        self.on_stored: Callable[[StoredPositions], None] = lambda _stored: None
        self._passes = passes
        self._shuffle = shuffle
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await self.bus.connect(20)
        self._commands = self.bus.subscribe(topics.command(topics.supervisor(self.host)))
        self._positions = self.bus.subscribe(topics.STORED)
        await self.bus.synced()
        work = (self._pump(), self._announce(), self._answer(), self._listen())
        self._tasks = [asyncio.create_task(each) for each in work]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await self.bus.close()

    def open(self, run: str, kind: StreamKind = "journal", attempt: int = 1) -> File:
        """Open a stream."""
        file = File(run, kind, attempt)
        self.files.append(file)
        return file

    async def until(self, what: str, condition: Callable[[], object], deadline_s: float = PATIENCE_S) -> None:
        """Wait for a condition while the bridge runs; raise the error of a bridge task that failed."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + deadline_s
        while not condition():
            for task in self._tasks:
                if task.done():
                    task.result()
            if loop.time() > deadline:
                raise AssertionError(f"{what}: not within {deadline_s} s")
            await asyncio.sleep(0.01)

    async def until_whole(self, *files: File, deadline_s: float = PATIENCE_S) -> None:
        """Wait until the store has every line of the given files, by default of all files."""
        wanted = files or tuple(self.files)
        await self.until("every line is stored", lambda: all(file.whole for file in wanted), deadline_s)

    async def _pump(self) -> None:
        while True:
            messages: list[tuple[str, Batch, bytes]] = []
            for file in self.files:
                stored = file.offsets[file.stored]
                if file.repair is not None and file.offsets[file.repair] - stored < WINDOW_BYTES:
                    file.repair = self._cut(file, file.repair, file.sent, topics.repair(file.run), messages)
                    if file.repair >= file.sent:
                        file.repair = None
                if file.offsets[file.sent] - stored < WINDOW_BYTES or not self.storing:
                    topic = (topics.journal if file.kind == "journal" else topics.log)(file.run)
                    file.sent = self._cut(file, file.sent, len(file.lines), topic, messages)
            self._shuffle(messages)
            for topic, batch, data in messages:
                self.bus.publish(topic, batch, (data,))
            await asyncio.sleep(0.002)

    def _cut(self, file: File, first: int, end: int, topic: str, messages: list[tuple[str, Batch, bytes]]) -> int:
        last = min(first + BATCH_LINES, end)
        if last <= first:
            return first
        batch = Batch(
            host=self.host,
            run=file.run,
            attempt=file.attempt,
            kind=file.kind,
            first=first,
            count=last - first,
            offset=file.offsets[first],
            end=file.offsets[last],
        )
        data = b"".join(line + b"\n" for line in file.lines[first:last])
        copies = self._passes(batch, topic.startswith("repair."))
        messages += [(topic, batch, data)] * copies
        return last

    async def _announce(self) -> None:
        while True:
            tails = [
                StreamTail(
                    run=file.run,
                    attempt=file.attempt,
                    kind=file.kind,
                    sent=Position(number=file.sent, offset=file.offsets[file.sent]),
                    final=file.ended and file.sent == len(file.lines),
                )
                for file in self.files
            ]
            self.bus.publish(topics.streams(self.host), StreamTails(host=self.host, tails=tails))
            await asyncio.sleep(0.2)

    async def _answer(self) -> None:
        async for message in self._commands:
            args = message.payload["args"]
            for file in self.files:
                if (file.run, file.attempt, file.kind) == (args["run"], args["attempt"], args["kind"]):
                    assert file.offsets[args["number"]] == args["offset"]
                    file.repair = file.stored = args["number"]
                    self.resends += 1
            answer = {"ok": True, "result": {}}
            self.bus.publish(topics.reply(message.payload["reply_to"]), answer, cor=message.header.id)

    async def _listen(self) -> None:
        async for message in self._positions:
            stored = StoredPositions.model_validate(message.payload)
            self.storing = stored.storing
            self.on_stored(stored)
            for each in stored.positions:
                for file in self.files:
                    if (file.run, file.attempt, file.kind) == (each.run, each.attempt, each.kind):
                        assert file.offsets[each.stored.number] == each.stored.offset
                        file.stored, file.final = each.stored.number, each.final
