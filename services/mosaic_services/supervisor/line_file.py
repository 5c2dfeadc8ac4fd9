"""Cuts a growing file into batches of whole lines.

The same position of the same file always gives the same lines with the same numbers, so a lost batch can be resent.
What a `LineFile` remembers only saves work.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from mosaic_bus.messages import Position
from mosaic_services.attempt_folder.layout import LOG_HEAD_BYTES, LOG_TAIL_BYTES

__all__ = ["CHUNK_BYTES", "MAX_LINE_BYTES", "Cut", "Limits", "LineFile"]

CHUNK_BYTES = 128 * 1024
MAX_LINE_BYTES = 1024 * 1024
_HEAD_OF_LONG_LINE = 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes in bytes; `chunk` must not exceed `max_line`."""

    chunk: int = CHUNK_BYTES
    max_line: int = MAX_LINE_BYTES
    log_head: int = LOG_HEAD_BYTES
    log_tail: int = LOG_TAIL_BYTES
    # Bytes of an unfinished line that one call searches for its end.
    scan: int = 8 * MAX_LINE_BYTES


@dataclass(frozen=True, slots=True)
class Cut:
    """Some whole lines of a file, each ended by a newline."""

    lines: bytes
    count: int
    start: Position
    end: Position


class LineFile:
    """A file that a worker appends lines to."""

    def __init__(self, path: str, *, is_log: bool = False, limits: Limits | None = None) -> None:
        self._path = path
        self._is_log = is_log
        self._limits = limits or Limits()
        self._fd: int | None = None
        # The last call that found nothing: (start, size, until, ended). The same call again finds nothing again.
        self._nothing: tuple[int, int, int | None, bool] | None = None
        # (start of a long line, offset up to which it has no newline).
        self._scanned = (-1, 0)

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def size(self) -> int:
        """Return the size of the file; 0 before it exists."""
        if self._fd is None:
            try:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return 0
        return os.fstat(self._fd).st_size

    def cut(self, start: Position, *, ended: bool, until: int | None = None) -> Cut | None:
        """Return the next whole lines from a position; None if there are none yet.

        With `ended`, nobody writes any more, and a last line without a newline counts as a line. The cut does not
        pass `until`, the end of an earlier cut.
        """
        size = self.size()
        if start.offset >= size or (until is not None and start.offset >= until):
            return None
        if self._nothing == (start.offset, size, until, ended):
            return None
        limits = self._limits
        flooded = self._is_log and size > limits.log_head and not (ended and size <= limits.log_head + limits.log_tail)
        in_head = flooded and start.offset <= limits.log_head
        limit = limits.log_head if in_head else size
        if until is not None:
            limit = min(limit, until)
        if flooded and not in_head and not ended:
            return None
        data = self._read(start.offset, min(limits.chunk, limit - start.offset))
        last = data.rfind(b"\n")
        if last < 0 and len(data) >= limits.chunk:
            data = self._read(start.offset, min(limits.max_line + 1, limit - start.offset))
            last = data.rfind(b"\n")
        if last >= 0:
            return _whole_lines(start, data[: last + 1], last + 1)
        if len(data) > limits.max_line:
            end = self._end_of_long_line(start.offset, limit)
            if end is None and self._scanned[1] < limit:
                return None  # The next call searches on.
            if end is None and ended and not in_head:
                end = limit
            if end is not None:
                return self._long_line(start, end)
        if ended and in_head:
            return self._left_out(start, size)
        if ended and limit == size:
            return _whole_lines(start, data + b"\n", len(data))
        self._nothing = (start.offset, size, until, ended)
        return None

    def _end_of_long_line(self, start: int, limit: int) -> int | None:
        """Return the offset after the newline of a long line; None if the part searched so far has none."""
        offset = start + self._limits.max_line
        if self._scanned[0] == start:
            offset = max(offset, self._scanned[1])
        stop = min(limit, offset + self._limits.scan)
        while offset < stop:
            piece = self._read(offset, min(self._limits.max_line, stop - offset))
            if (found := piece.find(b"\n")) >= 0:
                return offset + found + 1
            offset += len(piece) or stop
        self._scanned = (start, offset)
        return None

    def _long_line(self, start: Position, end: int) -> Cut:
        """Return a replacement for a line that is too long to carry."""
        length = end - start.offset
        if self._is_log:
            return _one_line(start, f"[a line of {length} bytes is left out here]", end)
        head = self._read(start.offset, min(_HEAD_OF_LONG_LINE, length)).decode("utf-8", "replace")
        stand_in = {"event": "malformed", "reason": "line too long", "bytes": length, "head": head}
        return _one_line(start, json.dumps(stand_in), end)

    def _left_out(self, start: Position, size: int) -> Cut:
        """Return a line that replaces the middle of a log that has ended; its tail follows."""
        tail = size - self._limits.log_tail
        newline = self._read(tail, self._limits.log_tail).find(b"\n")
        end = tail + newline + 1
        return _one_line(start, f"[{end - start.offset} bytes of log are left out here: it exceeded its limit]", end)

    def _read(self, offset: int, length: int) -> bytes:
        return os.pread(self._fd, length, offset) if self._fd is not None else b""


def _whole_lines(start: Position, lines: bytes, consumed: int) -> Cut:
    count = lines.count(b"\n")
    return Cut(lines, count, start, Position(number=start.number + count, offset=start.offset + consumed))


def _one_line(start: Position, text: str, end: int) -> Cut:
    return Cut(text.encode() + b"\n", 1, start, Position(number=start.number + 1, offset=end))
