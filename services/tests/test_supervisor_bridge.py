"""The bridge against a model of a store that loses batches, lags, dies, and comes back with less than it had."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mosaic_bus.messages import Batch, Position, StreamId
from mosaic_services.supervisor.bridge import Bridge
from mosaic_services.supervisor.line_file import Limits

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mosaic_bus.messages import Model

LIMITS = Limits(chunk=16, max_line=40, scan=64)
WINDOW = 64
STREAMS = [StreamId(run=run, attempt=1, kind="journal") for run in ("A", "B")]


@dataclass
class StoredStream:
    """One stream in the model of the store, which takes only batches that continue its position."""

    position: Position = field(default_factory=Position)
    lines: list[bytes] = field(default_factory=list)
    known: int = 0
    history: list[tuple[Position, int]] = field(default_factory=lambda: [(Position(), 0)])

    def take(self, batch: Batch, lines: list[bytes]) -> None:
        self.known = max(self.known, batch.first + batch.count)
        if batch.first <= self.position.number < batch.first + batch.count:
            self.lines += lines[self.position.number - batch.first :]
            self.position = Position(number=batch.first + batch.count, offset=batch.end)
            self.history.append((self.position, len(self.lines)))

    def go_back(self, steps: int) -> None:
        """Lose the newest lines, as after a power failure."""
        del self.history[max(1, len(self.history) - steps) :]
        self.position, count = self.history[-1]
        del self.lines[count:]


class World:
    """Two files, a bridge, a network that loses, a store and a live reader. (Store and network are models.)"""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = 100.0
        self.room = True
        self.store_up = True
        self.written = dict.fromkeys(STREAMS, b"")
        self.ended = dict.fromkeys(STREAMS, False)
        self.live: dict[StreamId, list[bytes]] = {stream: [] for stream in STREAMS}
        self.store = {stream: StoredStream() for stream in STREAMS}
        self.network: list[tuple[Batch, bytes]] = []
        for stream in STREAMS:
            self.path(stream).write_bytes(b"")
        self.start_bridge(adopted=False)

    def path(self, stream: StreamId) -> Path:
        return self.folder / stream.run

    def start_bridge(self, *, adopted: bool) -> None:
        self.bridge = Bridge("h", self.publish, self.now, limits=LIMITS, window=WINDOW)
        for stream in STREAMS:
            opened = self.bridge.open(stream, str(self.path(stream)), self.now, adopted=adopted)
            opened.ended = self.ended[stream]
        self.sent_this_pump = 0

    def publish(self, topic: str, body: Model, buffers: Iterable[bytes]) -> bool:
        if not self.room:
            return False
        assert isinstance(body, Batch)
        (data,) = buffers
        stream_id = StreamId(run=body.run, attempt=body.attempt, kind=body.kind)
        stream = self.bridge.streams[stream_id]
        lines = data.split(b"\n")[:-1]
        assert len(lines) == body.count
        self.sent_this_pump += 1
        if self.bridge.store_is_alive(self.now) and (topic.startswith("repair.") or stream.repair is None):
            assert body.offset - stream.stored.offset < WINDOW, "ran ahead of a store that is alive"
        if topic.startswith(("journal.", "log.")):
            seen = self.live[stream_id]
            assert body.first <= len(seen), "a hole for live readers"
            again = seen[body.first : body.first + body.count]
            assert again == lines[: len(again)], "a line came again with other content"
            seen += lines[len(again) :]
        else:
            assert body.first + body.count <= len(self.live[stream_id]), "sent again what was never live"
        self.network.append((body, data))
        return True

    def pump(self) -> bool:
        self.sent_this_pump = 0
        wait = self.bridge.pump(self.now)
        assert 0 <= wait <= 2
        assert self.sent_this_pump <= 8 * len(STREAMS), "unbounded work in one pump"
        return wait == 0

    def write(self, stream: StreamId, data: bytes) -> None:
        if not self.ended[stream]:
            self.written[stream] += data
            with self.path(stream).open("ab") as out:
                out.write(data)

    def deliver(self, count: int) -> None:
        for batch, data in self.network[:count]:
            if self.store_up:
                stream = StreamId(run=batch.run, attempt=batch.attempt, kind=batch.kind)
                self.store[stream].take(batch, data.split(b"\n")[:-1])
        del self.network[:count]

    def report(self) -> None:
        """Report positions, as the store does each second, and ask for resends."""
        if not self.store_up:
            return
        self.bridge.store_heard(self.now, storing=True)
        for tail in self.bridge.tails().tails:
            stream = StreamId(run=tail.run, attempt=tail.attempt, kind=tail.kind)
            stored = self.store[stream]
            stored.known = max(stored.known, tail.sent.number)
            final = tail.final and stored.position.number >= tail.sent.number
            self.bridge.set_stored(stream, stored.position, final=final)

    def ask(self, stream: StreamId) -> None:
        stored = self.store[stream]
        if self.store_up and stored.position.number < stored.known and not self.network:
            self.bridge.resend(stream, stored.position)

    def settle(self) -> None:
        """Lose nothing from now on; everything must be stored in the end."""
        self.room = self.store_up = True
        for stream in STREAMS:
            self.ended[stream] = True
            self.bridge.streams[stream].ended = True
        for _ in range(3000):
            self.now += 0.5
            self.pump()
            self.deliver(len(self.network))
            self.report()
            for stream in STREAMS:
                self.ask(stream)
            if all(stream.is_stored for stream in self.bridge.streams.values()):
                return
        raise AssertionError("not stored whole in the end")

    def expected(self, stream: StreamId) -> int:
        content = self.written[stream]
        return content.count(b"\n") + (content[-1:] not in (b"", b"\n"))


streams = st.sampled_from(STREAMS)
steps = st.one_of(
    st.tuples(st.just("write"), streams, st.integers(0, 50), st.booleans()),
    st.tuples(st.just("flood"), streams, st.integers(5, 60)),
    st.tuples(st.just("pump"), st.integers(1, 5)),
    st.tuples(st.just("deliver"), st.integers(1, 10)),
    st.tuples(st.just("lose"), st.integers(0, 5)),
    st.tuples(st.just("report")),
    st.tuples(st.just("ask"), streams),
    st.tuples(st.just("wait"), st.sampled_from([0.1, 1.0, 4.0])),
    st.tuples(st.just("room"), st.booleans()),
    st.tuples(st.just("store dies")),
    st.tuples(st.just("store restarts"), st.integers(0, 5)),
    st.tuples(st.just("supervisor restarts")),
    st.tuples(st.just("end"), streams),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("bridge")


@settings(max_examples=300, deadline=None)
@given(history=st.lists(steps, max_size=60))
def test_store_ends_with_every_line_once_and_live_readers_miss_none(folder: Path, history):
    world = World(folder)
    for step in history:
        match step:
            case ("write", stream, length, newline):
                world.write(stream, b"w" * length + b"\n" * newline)
            case ("flood", stream, count):
                world.write(stream, b"".join(b"%d\n" % number for number in range(count)))
            case ("pump", count):
                for _ in range(count):
                    world.pump()
            case ("deliver", count):
                world.deliver(count)
            case ("lose", place):
                del world.network[place : place + 1]
            case ("report",):
                world.report()
            case ("ask", stream):
                world.ask(stream)
            case ("wait", seconds):
                world.now += seconds
            case ("room", there_is):
                world.room = there_is
            case ("store dies",):
                world.store_up = False
            case ("store restarts", lost) if not world.store_up:
                world.store_up = True
                for stored in world.store.values():
                    stored.go_back(lost)
                    stored.known = stored.position.number
            case ("supervisor restarts",):
                for stream in STREAMS:
                    world.bridge.close(stream)
                world.start_bridge(adopted=True)
            case ("end", stream):
                world.ended[stream] = True
                world.bridge.streams[stream].ended = True
    world.settle()
    for stream in STREAMS:
        stored = world.store[stream]
        assert len(stored.lines) == stored.position.number == world.expected(stream)
        assert stored.position.offset == len(world.written[stream])
        assert world.live[stream] == stored.lines
        world.bridge.close(stream)


def test_store_that_is_away_does_not_hold_live_readers_back(tmp_path: Path):
    world = World(tmp_path)
    world.store_up = False
    world.write(STREAMS[0], b"line\n" * 200)
    while world.pump():
        pass
    assert len(world.live[STREAMS[0]]) * 5 < WINDOW + 40, (
        "the window holds while it is unclear whether the store is there"
    )
    world.now += 4.0
    while world.pump():
        pass
    assert len(world.live[STREAMS[0]]) == 200


def test_store_that_catches_up_is_not_outrun_by_a_worker_that_writes_flat_out(tmp_path: Path):
    world = World(tmp_path)
    stream = STREAMS[0]
    world.store_up = False
    world.now += 4.0
    world.write(stream, b"line\n" * 400)
    while world.pump():
        pass
    world.network.clear()
    world.store_up = True
    world.report()
    world.ask(stream)
    for _ in range(2000):
        # The store takes one batch at a time, the worker writes ten times as much.
        world.write(stream, b"line\n" * 32)
        before = world.store[stream].position
        while world.network and world.store[stream].position == before:
            world.deliver(1)
        world.report()
        world.pump()
        if world.bridge.streams[stream].repair is None:
            break
    else:
        pytest.fail("the store never caught up")
    assert len(world.live[stream]) > 400, "live readers stood still meanwhile"


def test_adopted_stream_that_the_store_never_names_is_published_from_its_beginning(tmp_path: Path):
    world = World(tmp_path)
    world.write(STREAMS[0], b"line\n")
    world.start_bridge(adopted=True)
    for _ in range(60):
        world.now += 0.1
        world.bridge.store_heard(world.now, storing=True)
        world.pump()
    assert world.live[STREAMS[0]] == [b"line"]


def test_end_of_a_stream_is_announced_until_the_store_says_that_it_knows(tmp_path: Path):
    world = World(tmp_path)
    stream = world.bridge.streams[STREAMS[0]]
    stream.ended = True
    world.pump()
    assert stream.drained
    # All of it (nothing) is stored, but the store does not know yet that the stream has ended.
    world.bridge.set_stored(STREAMS[0], Position(), final=False)
    assert not stream.is_stored
    assert world.bridge.tails().tails[0].final
    world.bridge.set_stored(STREAMS[0], Position(), final=True)
    assert stream.is_stored


def test_file_that_cannot_be_read_holds_up_its_own_stream_alone_and_is_tried_again(tmp_path: Path):
    world = World(tmp_path)
    broken, sound = STREAMS
    world.path(broken).unlink()
    world.path(broken).mkdir()  # Can be opened but not read.
    world.write(sound, b"line\n")
    waits = []
    for _ in range(5):
        waits.append(world.bridge.pump(world.now))
        world.now += 0.05
    assert world.live == {broken: [], sound: [b"line"]}
    assert min(waits) > 0, "it is not tried all the time"
    world.path(broken).rmdir()
    world.write(broken, b"again\n")
    for _ in range(50):
        world.now += 0.05
        world.report()
        world.pump()
    assert world.live[broken] == [b"again"]


def test_stream_of_which_all_is_carried_keeps_no_file_open_and_can_be_sent_again(tmp_path: Path):
    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    world = World(tmp_path)
    before = open_files()
    for stream in STREAMS:
        world.write(stream, b"one\ntwo\n")
    world.pump()
    assert open_files() == before + 2
    for stream in STREAMS:
        world.bridge.streams[stream].ended = world.ended[stream] = True
    for _ in range(3):
        world.now += 0.05
        world.pump()
        assert open_files() == before, "the store need not be there for that"
    world.network.clear()
    world.bridge.resend(STREAMS[0], Position())
    world.pump()
    world.deliver(10)
    assert world.store[STREAMS[0]].lines == [b"one", b"two"]
    world.now += 0.05
    world.pump()
    assert open_files() == before


def test_resend_of_a_stream_that_is_not_here_is_refused(tmp_path: Path):
    world = World(tmp_path)
    assert not world.bridge.resend(StreamId(run="other", attempt=1, kind="log"), Position())
