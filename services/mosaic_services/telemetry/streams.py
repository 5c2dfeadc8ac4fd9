"""Decides what to do with each batch of a stream: take it, drop it, or request what is missing.

Pure: time is an argument, requests are return values. A stream has one position, and every line before it is stored. A
batch that continues at the position is taken. A batch before it is dropped as a repetition. A batch beyond it is
dropped too, and the stream is requested again from the position (go-back-N).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from mosaic_bus.messages import Position

if TYPE_CHECKING:
    from mosaic_bus.messages import StreamKind

__all__ = ["Ask", "Counts", "Stream", "StreamKey", "Take"]

ASK_AGAIN_S = 1.0
"""Time without progress after which a request is repeated; doubles with each repetition."""
ASK_AGAIN_AT_MOST_S = 8.0
"""Upper limit of that back-off."""
TAIL_QUIET_S = 0.5
"""Time to wait for lines that only the host's announcement mentions: they are probably on their way."""
REPAIR_LOST_S = 0.25
"""Time without progress after which a request is repeated if the repair itself had a hole."""
ASK_APART_S = 0.1
"""Minimum time between two requests for one stream."""


class StreamKey(NamedTuple):
    """One numbered sequence of lines."""

    run: str
    attempt: int
    kind: StreamKind


class Take(NamedTuple):
    """Store a batch without its first `drop` lines."""

    drop: int
    first: int
    lines: int


class Ask(NamedTuple):
    """Ask the host to publish the stream again from this position."""

    host: str
    key: StreamKey
    number: int
    offset: int


@dataclass(slots=True)
class Counts:
    """What happened to the lines of a stream."""

    received: int = 0
    repaired: int = 0
    malformed: int = 0


@dataclass(slots=True)
class Stream:
    """The position of one stream, and what is known to exist beyond it."""

    key: StreamKey
    host: str
    number: int = 0
    offset: int = 0
    final: bool = False
    counts: Counts = field(default_factory=Counts)
    known: int = 0  # lines up to here exist: the host announced or sent them
    _end: int | None = None  # number of lines in the stream, once the host has announced its end
    _hole: bool = False  # a batch beyond the position has arrived, so lines in between were lost
    _moved_at: float = 0.0
    _behind_since: float | None = None
    _asked_at: float | None = None  # None if no request is pending
    _last_ask: float = -1e9
    _patience: float = ASK_AGAIN_S

    @property
    def position(self) -> Position:
        """Where the next batch must start: every line before it is stored."""
        return Position(number=self.number, offset=self.offset)

    @property
    def missing(self) -> int:
        """Lines that exist and are not stored."""
        return 0 if self.final else max(0, self.known - self.number)

    def offer(self, first: int, count: int, end: int, *, repair: bool, now: float) -> Take | None:
        """Decide about a batch. The caller must store what is taken, or else load the stream from the store again."""
        after = first + count
        self.known = max(self.known, after)
        if after <= self.number:
            return None
        if first > self.number:
            self._hole = True
            if repair:
                self._patience = min(self._patience, REPAIR_LOST_S)
            return None
        drop = max(0, self.number - first)
        take = Take(drop=drop, first=first + drop, lines=count - drop)
        self.number, self.offset = after, end
        if repair:
            self.counts.repaired += take.lines
        else:
            self.counts.received += take.lines
        self._moved_at = now
        self._behind_since = None
        self._patience = ASK_AGAIN_S
        if self.number >= self.known:
            self._hole = False
            self._asked_at = None
        return take

    def announce(self, host: str, sent: int, *, final: bool) -> None:
        """Record how many lines the host has sent, and whether those are all."""
        self.host = host
        self.known = sent if final else max(self.known, sent)
        self._end = sent if final else None

    @property
    def ended(self) -> bool:
        """Whether the stream has ended and every line of it is stored."""
        return self._end is not None and self.number >= self._end

    def tick(self, now: float) -> Ask | None:
        """Return a request for missing lines if one is due."""
        if self.final or self.number >= self.known:
            self._behind_since = None
            return None
        if self._behind_since is None:
            self._behind_since = now
        if self._asked_at is not None:
            # One request at a time, for everything from the position on; repeated if it brings no progress.
            if now - max(self._asked_at, self._moved_at) < self._patience:
                return None
            self._patience = min(2 * self._patience, ASK_AGAIN_AT_MOST_S)
        elif self._hole:
            if now - self._last_ask < ASK_APART_S:
                return None
        elif now - self._behind_since < TAIL_QUIET_S:
            return None
        self._asked_at = self._last_ask = now
        self._hole = False
        return Ask(self.host, self.key, self.number, self.offset)
