"""The reading side of FastLane: the newest frame of a stream, from shared memory, without disturbing its writer.

The layout of the file is in `docs/protocol.md`, part 6; `mosaic_worker.frames.ring` writes it. A reader copies a
slot, and keeps the copy only if the slot's lock number was even and the same before and after. It never waits, never
writes, and never removes anything.

The file is read and not mapped: a process that touches a mapped page which is no longer there, because somebody has cut
the file, is killed on the spot (SIGBUS); one that reads there gets fewer bytes and can say so.
"""

from __future__ import annotations

import contextlib
import math
import os
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from mosaic_bus.errors import LayoutError, StaleFrameError

if TYPE_CHECKING:
    from collections.abc import Callable
    from io import FileIO

    import numpy as np
    import numpy.typing as npt

    from mosaic_bus.messages import FrameHandle

__all__ = ["Frame", "FrameFacts", "FrameReader"]

MAGIC = int.from_bytes(b"MOSAICFL", "little")
LAYOUT = 1
HEADER_BYTES = 256
SLOT_HEADER_BYTES = 128
LIVE, CLOSED, REPLACED = 1, 2, 3
_WORD = 8
_HEADER = struct.Struct("=12Q")
# What comes before the state and the count of frames: it stays as it is for as long as there is the file.
_FIXED = slice(0, 10 * _WORD)
_SLOT = struct.Struct("=8Q5d")
_UINT8 = 1
_MOST_SLOTS = 64
# A writer that overtakes a reader so often in a row writes faster than anybody can copy.
_TRIES = 100

Taken = TypeVar("Taken")


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame: its pixels and the figures that belong to it."""

    pixels: npt.NDArray[np.uint8]
    number: int
    epoch: int
    step: int
    episode: int
    wall: float
    monotonic: float
    last_reward: float
    rolling_return: float
    step_rate_hz: float
    stream: str = "main"


@dataclass(frozen=True, slots=True)
class FrameFacts:
    """Everything about a frame but its pixels."""

    shape: tuple[int, ...]
    number: int
    epoch: int
    step: int
    episode: int
    wall: float
    monotonic: float
    last_reward: float
    rolling_return: float
    step_rate_hz: float


class FrameReader:
    """Reads one stream of frames; follows it to a new file when the writer had to make a larger one."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a ring; raise `LayoutError` if it is none, and `FileNotFoundError` if it is not there."""
        self.path = Path(path)
        self.inode = 0
        # How often the writer has made the file; larger frames need a new one.
        self.epoch = 0
        # How many frames the file can hold.
        self.slots = 0
        self._file: FileIO
        self._fixed = b""
        self._size = self._stride = self._capacity = 0
        self._writer = (0, 0, 0)
        self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def published(self) -> int:
        """How many frames there have been."""
        return self._look()[1]

    @property
    def is_closed(self) -> bool:
        """Whether the writer has said that no more will come."""
        return self._look()[0] == CLOSED

    @property
    def writer_is_alive(self) -> bool:
        """Whether the process that made the file still runs."""
        pid, started, boot = self._writer
        try:
            fields = Path(f"/proc/{pid}/stat").read_bytes().rsplit(b")", 1)[1].split()
        except OSError:
            return False
        return int(fields[19]) == started and fields[0] not in (b"Z", b"X") and boot == _boot()

    def latest(self) -> Frame | None:
        """Copy the newest whole frame; None if there is none yet; `LayoutError` if the file is no ring any more."""
        return self._newest(self._copy)

    def facts(self) -> FrameFacts | None:
        """Say all about the newest whole frame, without copying it; None if there is none yet."""
        return self._newest(self._facts)

    def refresh(self) -> None:
        """Look whether the file is still the one that was opened; open another that has taken its place.

        Another writer of the same stream, after the first has closed or died, makes another file. Raise
        `FileNotFoundError` if there is none any more, and `LayoutError` if it has been cut short or overwritten.
        """
        found = self.path.stat()
        if found.st_ino != self.inode:
            self._open()
        elif found.st_size < self._size:
            raise self._cut_short(found.st_size)
        self._look()

    def _newest(self, take: Callable[[int], Taken | None]) -> Taken | None:
        state, published = self._look()
        if state == REPLACED:
            self._open()
            published = self.published
        for _ in range(_TRIES):
            newest = published - 1
            # One that is being overwritten, or was when its writer died, is passed over for the one before it.
            for number in range(newest, max(-1, newest - self.slots), -1):
                if taken := take(number):
                    return taken
            published = self.published
            if published - 1 == newest:
                return None
        return None

    def read(self, handle: FrameHandle) -> Frame:
        """Copy the frame that a handle names; raise `StaleFrameError` if it has been overwritten or replaced."""
        with contextlib.suppress(FileNotFoundError):  # The run has ended; what is open can still be read.
            self.refresh()
        if handle.epoch != self.epoch:
            raise StaleFrameError(
                str(self.path), handle.number, f"the file is of epoch {self.epoch}, not {handle.epoch}"
            )
        frame = self._copy(handle.number)
        if frame is None:
            raise StaleFrameError(str(self.path), handle.number, f"the newest is {self.published - 1}")
        if frame.wall != handle.wall:
            # A writer that was started anew counts from 0 again.
            raise StaleFrameError(str(self.path), handle.number, "another writer has written one of that number")
        return frame

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _facts(self, number: int) -> FrameFacts | None:
        """Read a frame's figures if it is there and stays whole meanwhile."""
        at = HEADER_BYTES + (number % self.slots) * self._stride
        wanted = 2 * number + 2
        if self._lock(at) != wanted:
            return None
        _, height, width, channels, kind, size, step, episode, *figures = _SLOT.unpack(self._read(_SLOT.size, at))
        if kind != _UINT8 or size != height * width * channels or size > self._capacity:
            return None  # Torn, or not ours: the lock would say so, but a copy must not go astray first.
        if self._lock(at) != wanted:
            return None
        shape = (height, width) if channels == 1 else (height, width, channels)
        return FrameFacts(shape, number, self.epoch, step, episode, *figures)

    def _copy(self, number: int) -> Frame | None:
        """Copy a frame if it is there and stays whole meanwhile."""
        import numpy as np  # noqa: PLC0415 - start-up time of supervisors, most of which never copy a frame

        facts = self._facts(number)
        if facts is None:
            return None
        at = HEADER_BYTES + (number % self.slots) * self._stride
        pixels = np.empty(math.prod(facts.shape), np.uint8)
        if os.preadv(self._file.fileno(), [pixels.data], at + SLOT_HEADER_BYTES) < pixels.size:
            raise self._cut_short(os.fstat(self._file.fileno()).st_size)
        if self._lock(at) != 2 * number + 2:
            return None
        return Frame(
            pixels.reshape(facts.shape),
            number,
            facts.epoch,
            facts.step,
            facts.episode,
            facts.wall,
            facts.monotonic,
            facts.last_reward,
            facts.rolling_return,
            facts.step_rate_hz,
            self.path.stem,
        )

    def _lock(self, at: int) -> int:
        # It need not be read in one piece. A torn read never equals the wanted value.
        return int.from_bytes(self._read(_WORD, at), sys.byteorder)

    def _read(self, size: int, at: int) -> bytes:
        data = os.pread(self._file.fileno(), size, at)
        if len(data) < size:
            raise self._cut_short(os.fstat(self._file.fileno()).st_size)
        return data

    def _cut_short(self, size: int) -> LayoutError:
        return LayoutError(str(self.path), f"it has been cut from {self._size} to {size} bytes")

    def _look(self) -> tuple[int, int]:
        """Read the state and how many frames there have been, from a header that is still what it was."""
        header = self._read(_HEADER.size, 0)
        *_, state, published = _HEADER.unpack(header)
        if header[_FIXED] != self._fixed or state not in (LIVE, CLOSED, REPLACED):
            raise LayoutError(str(self.path), "its header has been overwritten")
        return state, published

    def _open(self) -> None:
        """Open the file; what was open is let go only if this one is in order."""
        file = self.path.open("rb", buffering=0)
        try:
            found = os.fstat(file.fileno())
            header = os.pread(file.fileno(), HEADER_BYTES, 0)
            if len(header) < HEADER_BYTES:
                raise LayoutError(
                    str(self.path), f"it has {len(header)} bytes, and the header alone has {HEADER_BYTES}"
                )
            words = _HEADER.unpack_from(header)
            if reason := _what_is_wrong(words, found.st_size):
                raise LayoutError(str(self.path), reason)
        except BaseException:
            file.close()
            raise
        if self.inode:
            self._file.close()
        self._file, self.inode, self._size, self._fixed = file, found.st_ino, found.st_size, header[_FIXED]
        self.slots, self._stride, self._capacity, self.epoch, *writer = words[3:10]
        self._writer = (writer[0], writer[1], writer[2])


def _what_is_wrong(words: tuple[int, ...], size: int) -> str:
    magic, layout, header_bytes, slots, stride, capacity = words[:6]
    if magic != MAGIC:
        return "it is not a ring of frames: wrong magic number"
    if layout != LAYOUT:
        return f"it has layout {layout}, and {LAYOUT} is known here"
    whole = header_bytes == HEADER_BYTES and 0 < slots <= _MOST_SLOTS and stride == SLOT_HEADER_BYTES + capacity
    if not whole or stride % _WORD or HEADER_BYTES + slots * stride > size:
        return f"its header does not fit its {size} bytes"
    return ""


def _boot() -> int:
    try:
        return int(Path("/proc/sys/kernel/random/boot_id").read_text().replace("-", "")[:16], 16)
    except (OSError, ValueError):
        return 0
