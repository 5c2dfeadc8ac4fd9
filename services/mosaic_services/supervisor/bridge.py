"""The bridge: publishes the lines of growing files in batches, at the pace of the store.

It reads files, but has no clock and no socket: times and the function that publishes are passed in.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from mosaic_bus import topics
from mosaic_bus.logs import Logger
from mosaic_bus.messages import Batch, Position, StreamId, StreamTail, StreamTails
from mosaic_services.settings.model import SupervisorSettings
from mosaic_services.supervisor.line_file import Cut, Limits, LineFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mosaic_bus.messages import Model

__all__ = ["Bridge", "Stream"]

_log = Logger()

# Defaults of the window of one stream and of the interval between reads. Each batch and each wake-up costs CPU time
# that a training could use.
_DEFAULTS = SupervisorSettings()
# Bytes by which all streams together may be ahead of the store. ZeroMQ queues 500 messages per subscriber and drops the
# rest; this is well below 500 batches of full size.
_ALL_WINDOWS_BYTES = 24 * 1024 * 1024
# Batches of one stream before the next stream has its turn.
_BATCHES_PER_TURN = 4
# Seconds by which each busy stream delays the next look at every busy stream: about 500 batches a second in all.
_LINGER_PER_STREAM_S = 0.002
# Seconds by which each stream delays the next look at a quiet one.
_REST_PER_STREAM_S = 0.0005
_LONGEST_WAIT_S = 2.0
# Seconds until the next try when the window is full or the bus has no room.
_HELD_UP_S = 0.01
# Batches that are resent for each live one while the store catches up.
_REPAIRS_PER_LIVE = 4
# Seconds of silence after which the store counts as away; live batches then no longer wait for it.
_STORE_AWAY_AFTER_S = 3.0
# Seconds after which a store that has not named an adopted stream does not know it; it names all it knows each second.
_ADOPTED_UNKNOWN_AFTER_S = 5.0


@dataclass
class Stream:
    """One file that is carried to the store."""

    id: StreamId
    file: LineFile
    # How far it has been published; None for an adopted stream until the store has named its position.
    sent: Position | None
    opened_at: float
    stored: Position = field(default_factory=Position)
    # Position of a resend in progress.
    repair: Position | None = None
    # Whether the last look found new lines.
    is_busy: bool = True
    # Whether there are lines that cannot be published yet.
    is_held_up: bool = False
    # Whether the last read failed.
    is_troubled: bool = False
    # Time of the next look.
    look_at: float = 0.0
    # Batches resent since the last live one.
    repaired: int = 0
    ended: bool = False
    drained: bool = False
    # Whether the store has confirmed that it has every line.
    confirmed: bool = False

    @property
    def is_stored(self) -> bool:
        """Whether the stream has ended and the store has every line."""
        return self.drained and self.confirmed


class Bridge:
    """All open streams of a host."""

    def __init__(
        self,
        host: str,
        publish: Callable[[str, Model, Iterable[bytes]], bool],
        now: float,
        *,
        limits: Limits | None = None,
        window: int = _DEFAULTS.window_mb * 2**20,
        look_s: float = _DEFAULTS.look_every_s,
    ) -> None:
        self.host = host
        self._limits = limits or Limits()
        self._window = window
        self._look_s = look_s
        self.streams: dict[StreamId, Stream] = {}
        self.counters: Counter[str] = Counter({"lines": 0, "bytes": 0, "resent": 0})
        self._publish = publish
        self._store_heard_at = now
        self._storing = True

    def open(self, stream_id: StreamId, path: str, now: float, *, adopted: bool, log_head: int | None = None) -> Stream:
        """Start to carry a file; `adopted` if an earlier supervisor may have carried part of it.

        `log_head` bytes of a log are carried live.
        """
        limits = self._limits if log_head is None else replace(self._limits, log_head=log_head)
        file = LineFile(path, is_log=stream_id.kind == "log", limits=limits)
        stream = Stream(stream_id, file, sent=None if adopted else Position(), opened_at=now)
        self.streams[stream_id] = stream
        return stream

    def close(self, stream_id: StreamId) -> None:
        """Forget a stream."""
        self.streams.pop(stream_id).file.close()

    # ── what the store says ─────────────────────────────────────────────────────────────────────

    def store_heard(self, now: float, *, storing: bool) -> None:
        """The store is alive."""
        self._store_heard_at = now
        self._storing = storing

    def set_stored(self, stream_id: StreamId, position: Position, *, final: bool) -> None:
        """The store has committed up to this position."""
        stream = self.streams.get(stream_id)
        if stream is None:
            return
        stream.stored = position
        # An earlier supervisor has published what is stored.
        if stream.sent is None or position.number > stream.sent.number:
            stream.sent = position
        stream.confirmed = final

    def resend(self, stream_id: StreamId, position: Position) -> bool:
        """Resend a stream from a position; return False if there is no such stream."""
        stream = self.streams.get(stream_id)
        if stream is None:
            return False
        if stream.sent is None:
            stream.sent = position
        stream.stored = stream.repair = position
        return True

    def store_is_alive(self, now: float) -> bool:
        """Whether the store is there and stores."""
        return self._storing and now - self._store_heard_at < _STORE_AWAY_AFTER_S

    # ── carrying ────────────────────────────────────────────────────────────────────────────────

    def pump(self, now: float) -> float:
        """Give every stream that is due a turn; return the seconds until the next call.

        Call earlier when a stream was opened, has ended or is to be resent.
        """
        alive = self.store_is_alive(now)
        busy = sum(1 for stream in self.streams.values() if stream.is_busy)
        window = min(self._window, max(2 * self._limits.chunk, _ALL_WINDOWS_BYTES // max(1, busy)))
        linger = self._pause(busy * _LINGER_PER_STREAM_S)
        rest = self._pause(len(self.streams) * _REST_PER_STREAM_S)
        wait = self._look_s if self.streams else _LONGEST_WAIT_S
        for stream in list(self.streams.values()):
            if stream.drained and stream.repair is None:
                stream.is_busy = False
                continue
            is_urgent = (stream.ended or stream.repair is not None) and not stream.is_troubled
            if now + self._look_s / 2 < stream.look_at and not is_urgent:
                continue
            carried = self._turn(stream, now, window, alive=alive)
            stream.look_at = now + (linger if carried else rest)
            if carried > self._limits.chunk // 2:
                stream.look_at, wait = now, 0.0
            elif stream.is_held_up:
                stream.look_at, wait = now, min(wait, _HELD_UP_S)
            elif stream.is_troubled:
                stream.look_at = now + _LONGEST_WAIT_S
        return wait

    def look(self, stream_id: StreamId, now: float) -> None:
        """Give one stream a turn now, because its file has grown."""
        stream = self.streams.get(stream_id)
        if stream is not None and not stream.drained and not stream.is_troubled:
            self._turn(stream, now, self._window, alive=self.store_is_alive(now))

    def _turn(self, stream: Stream, now: float, window: int, *, alive: bool) -> int:
        """Publish new lines, within bounds; return the number of bytes."""
        stream.is_held_up = False
        try:
            carried = self._pump_stream(stream, now, window, alive=alive)
            stream.is_troubled = False
        except OSError as error:
            carried = 0
            self._leave_alone(stream, error)
        stream.is_busy = carried > 0
        return carried

    def _leave_alone(self, stream: Stream, error: OSError) -> None:
        """Close a file that cannot be read; only its own stream waits, and the next look tries again."""
        stream.file.close()
        if not stream.is_troubled:
            stream.is_troubled = True
            _log.warning("cannot read", run=stream.id.run, attempt=stream.id.attempt, reason=str(error))

    def _pump_stream(self, stream: Stream, now: float, window: int, *, alive: bool) -> int:
        """Publish some batches; return the number of bytes."""
        carried = 0
        if stream.sent is None:
            if alive and now - stream.opened_at < _ADOPTED_UNKNOWN_AFTER_S:
                return 0
            stream.sent = stream.stored
        if stream.repair is not None:
            carried += self._pump_repair(stream, stream.sent, window)
        if stream.repair is None or not alive:
            carried += self._pump_live(stream, _BATCHES_PER_TURN, window if alive else None)
        elif stream.repaired >= _REPAIRS_PER_LIVE:
            # Live batches go on while the store catches up, but slower than the resend: otherwise the store would
            # never catch up with a worker that writes without pause.
            stream.repaired = 0
            carried += self._pump_live(stream, 1, None)
        return carried

    def _pump_repair(self, stream: Stream, sent: Position, window: int) -> int:
        carried = 0
        for _ in range(_BATCHES_PER_TURN):
            if stream.repair is None:
                break
            if stream.repair.offset - stream.stored.offset >= window:
                stream.is_held_up = True
                break
            if stream.repair.number >= sent.number or stream.repair.offset >= sent.offset:
                stream.repair = None
                break
            # Not beyond what was published live: live readers do not receive this topic.
            cut = stream.file.cut(stream.repair, ended=stream.ended, until=sent.offset)
            if cut is None:
                break
            if not self._send(stream, cut, topics.repair(stream.id.run)):
                stream.is_held_up = True
                break
            self.counters["resent"] += cut.count
            stream.repair = cut.end
            stream.repaired += 1
            carried += len(cut.lines)
        return carried

    def _pump_live(self, stream: Stream, turns: int, window: int | None) -> int:
        topic = (topics.journal if stream.id.kind == "journal" else topics.log)(stream.id.run)
        carried = 0
        for _ in range(turns):
            if stream.sent is None:
                break
            if window is not None and stream.sent.offset - stream.stored.offset >= window:
                stream.is_held_up = True
                break
            ended = stream.ended  # Read before the file, so that no line written before the end is missed.
            cut = stream.file.cut(stream.sent, ended=ended)
            if cut is None:
                stream.drained = ended and stream.sent.offset >= stream.file.size()
                if stream.drained:
                    stream.file.close()  # A resend opens it again.
                break
            if not self._send(stream, cut, topic):
                stream.is_held_up = True
                break
            stream.sent = cut.end
            carried += len(cut.lines)
        return carried

    def _send(self, stream: Stream, cut: Cut, topic: str) -> bool:
        batch = Batch(
            host=self.host,
            run=stream.id.run,
            attempt=stream.id.attempt,
            kind=stream.id.kind,
            first=cut.start.number,
            count=cut.count,
            offset=cut.start.offset,
            end=cut.end.offset,
        )
        if not self._publish(topic, batch, (cut.lines,)):
            return False
        self.counters["lines"] += cut.count
        self.counters["bytes"] += len(cut.lines)
        return True

    def tails(self) -> StreamTails:
        """Return how far every open stream has been published."""
        return StreamTails(
            host=self.host,
            tails=[
                StreamTail(
                    run=stream.id.run,
                    attempt=stream.id.attempt,
                    kind=stream.id.kind,
                    sent=stream.sent or Position(),
                    final=stream.drained,
                )
                for stream in self.streams.values()
            ],
        )

    def _pause(self, seconds: float) -> float:
        """Bound the seconds until the next look at a file."""
        return min(max(seconds, self._look_s), _LONGEST_WAIT_S)
