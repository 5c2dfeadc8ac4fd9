"""Cutting a growing file into batches of whole lines. Reads at given positions and keeps no state.

The same position of the same file always gives the same lines with the same numbers, however often it is read
and whoever reads it: that is what lets a lost batch be sent again.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from mosaic_bus.messages import Position
from mosaic_services.supervisor.run_host import LOG_HEAD_BYTES, LOG_TAIL_BYTES

__all__ = ["CHUNK_BYTES", "MAX_LINE_BYTES", "Cut", "LineFile"]

CHUNK_BYTES = 128 * 1024
MAX_LINE_BYTES = 1024 * 1024
_HEAD_OF_LONG_LINE = 1024


@dataclass(frozen=True, slots=True)
class Cut:
    """Some whole lines of a file, each ended by a newline."""

    lines: bytes
    count: int
    start: Position
    end: Position


class LineFile:
    """A file that a worker appends lines to."""

    def __init__(self, path: str, *, is_log: bool = False) -> None:
        self._path = path
        self._is_log = is_log
        self._fd: int | None = None

    def close(self) -> None:
        """Close the file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def size(self) -> int:
        """How many bytes the file has by now; 0 before it exists."""
        if self._fd is None:
            try:
                self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return 0
        return os.fstat(self._fd).st_size

    def cut(self, start: Position, *, ended: bool, until: int | None = None) -> Cut | None:
        """Take the next whole lines from a position; None if there are none yet.

        `ended` says that nobody writes any more: a last line without a newline then counts as a line.
        `until` is a line's end that an earlier cut came to, and that this one must not pass.
        """
        size = limit = self.size()
        if self._is_log and size > LOG_HEAD_BYTES and not (ended and size <= LOG_HEAD_BYTES + LOG_TAIL_BYTES):
            if start.offset <= LOG_HEAD_BYTES:
                limit = LOG_HEAD_BYTES
            elif not ended:
                return None
        if start.offset >= size or self._fd is None:
            return None
        here = min(CHUNK_BYTES, limit - start.offset, (until or limit) - start.offset)
        data = os.pread(self._fd, here, start.offset)
        last = data.rfind(b"\n")
        if last < 0 and len(data) == CHUNK_BYTES:
            data = os.pread(self._fd, min(MAX_LINE_BYTES + 1, limit - start.offset), start.offset)
            last = data.rfind(b"\n")
        if last >= 0:
            return _whole_lines(start, data[: last + 1], last + 1)
        if limit < size:
            return self._flooded(start, size, ended=ended)
        if len(data) > MAX_LINE_BYTES:
            return self._long_line(start, size, ended=ended)
        return _whole_lines(start, data + b"\n", len(data)) if ended else None

    def _long_line(self, start: Position, size: int, *, ended: bool) -> Cut | None:
        """Stand in for a line that is too long to carry, once its end is known."""
        end = self._find_newline(start.offset + MAX_LINE_BYTES, size)
        if end is None:
            if not ended:
                return None
            end = size
        head = self._read(start.offset, _HEAD_OF_LONG_LINE).decode("utf-8", "replace")
        stand_in = {"event": "malformed", "reason": "line too long", "bytes": end - start.offset, "head": head}
        text = f"[a line of {end - start.offset} bytes is left out here]" if self._is_log else json.dumps(stand_in)
        return _one_line(start, text, end)

    def _flooded(self, start: Position, size: int, *, ended: bool) -> Cut | None:
        """Stand in for the middle of a log over its limit, once the log has ended: its tail still follows."""
        if not ended:
            return None
        tail = max(size - LOG_TAIL_BYTES, start.offset)
        newline = self._find_newline(tail, size)
        end = tail if newline is None else newline
        return _one_line(start, f"[{end - start.offset} bytes of log are left out here: it exceeded its limit]", end)

    def _find_newline(self, offset: int, size: int) -> int | None:
        """The place after the next newline."""
        while offset < size:
            piece = self._read(offset, MAX_LINE_BYTES)
            if (found := piece.find(b"\n")) >= 0:
                return offset + found + 1
            offset += len(piece) or size
        return None

    def _read(self, offset: int, length: int) -> bytes:
        return os.pread(self._fd, length, offset) if self._fd is not None else b""


def _whole_lines(start: Position, lines: bytes, consumed: int) -> Cut:
    count = lines.count(b"\n")
    return Cut(lines, count, start, Position(number=start.number + count, offset=start.offset + consumed))


def _one_line(start: Position, text: str, end: int) -> Cut:
    return Cut(text.encode() + b"\n", 1, start, Position(number=start.number + 1, offset=end))
