"""The reading side of FastLane: the newest picture of a stream, from shared memory, without disturbing its writer.

The layout of the file is in `docs/protocol.md`, part 6; the writing side is `mosaic_worker.frames`. A reader maps the
file for reading only, copies a slot, and keeps the copy only if the slot's lock number was even and the same before
and after. It never waits, never writes, and never removes anything.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from mosaic_bus.errors import LayoutError, StaleFrameError

if TYPE_CHECKING:
    import numpy.typing as npt

    from mosaic_bus.messages import FrameHandle

__all__ = ["Frame", "FrameReader"]

MAGIC = int.from_bytes(b"MOSAICFL", "little")
LAYOUT = 1
HEADER_BYTES = 256
SLOT_HEADER_BYTES = 128
LIVE, CLOSED, REPLACED = 1, 2, 3
_WORD = 8
_SLOTS, _STRIDE, _CAPACITY, _EPOCH, _PID, _STARTED, _BOOT, _STATE, _PUBLISHED = 3, 4, 5, 6, 7, 8, 9, 10, 11
_UINT8 = 1
_MOST_SLOTS = 64
# A writer that overtakes a reader so often in a row writes faster than anybody can copy.
_TRIES = 100


@dataclass(frozen=True, slots=True)
class Frame:
    """A picture with the figures that belong to it."""

    picture: npt.NDArray[np.uint8]
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
    """Reads one stream of pictures; follows it to a new file when the writer had to make a larger one."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a ring; raise `LayoutError` if it is none, and `FileNotFoundError` if it is not there."""
        self.path = Path(path)
        self._map: mmap.mmap
        self._header: npt.NDArray[np.uint64]
        self._words: npt.NDArray[np.uint64]
        self._reals: npt.NDArray[np.float64]
        self._bytes: npt.NDArray[np.uint8]
        self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def epoch(self) -> int:
        """How often the writer has made the file; larger pictures need a new one."""
        return int(self._header[_EPOCH])

    @property
    def published(self) -> int:
        """How many pictures there have been."""
        return int(self._header[_PUBLISHED])

    @property
    def slots(self) -> int:
        """How many pictures the file can hold."""
        return int(self._header[_SLOTS])

    @property
    def is_closed(self) -> bool:
        """Whether the writer has said that no more will come."""
        return int(self._header[_STATE]) == CLOSED

    @property
    def writer_is_alive(self) -> bool:
        """Whether the process that made the file still runs."""
        pid, started, boot = (int(self._header[word]) for word in (_PID, _STARTED, _BOOT))
        try:
            fields = Path(f"/proc/{pid}/stat").read_bytes().rsplit(b")", 1)[1].split()
        except OSError:
            return False
        return int(fields[19]) == started and fields[0] not in (b"Z", b"X") and boot == _boot()

    def latest(self) -> Frame | None:
        """Copy the newest whole picture; None if there is none yet."""
        if int(self._header[_STATE]) == REPLACED:
            self._reopen()
        for _ in range(_TRIES):
            newest = self.published - 1
            # One that is being overwritten, or was when its writer died, is passed over for the one before it.
            for number in range(newest, max(-1, newest - self.slots), -1):
                if frame := self._copy(number):
                    return frame
            if self.published - 1 == newest:
                return None
        return None

    def read(self, handle: FrameHandle) -> Frame:
        """Copy the picture that a handle names; raise `StaleFrameError` if it has been overwritten or replaced."""
        if handle.epoch != self.epoch and self.path.exists():
            self._reopen()
        if handle.epoch != self.epoch:
            raise StaleFrameError(
                str(self.path), handle.number, f"the file is of epoch {self.epoch}, not {handle.epoch}"
            )
        frame = self._copy(handle.number)
        if frame is None:
            raise StaleFrameError(str(self.path), handle.number, f"the newest is {self.published - 1}")
        return frame

    def close(self) -> None:
        """Let go of the file."""
        self._header = self._header.copy()
        self._words = self._words.copy()
        self._reals = self._reals.copy()
        self._bytes = self._bytes[:0].copy()
        self._map.close()

    def _copy(self, number: int) -> Frame | None:
        """Copy a picture if it is there and stays whole meanwhile."""
        slots, stride, capacity = (int(self._header[word]) for word in (_SLOTS, _STRIDE, _CAPACITY))
        start = HEADER_BYTES + (number % slots) * stride
        at = start // _WORD
        wanted = 2 * number + 2
        if int(self._words[at]) != wanted:
            return None
        height, width, channels, kind, size, step, episode = (int(each) for each in self._words[at + 1 : at + 8])
        figures = [float(each) for each in self._reals[at + 8 : at + 13]]
        if kind != _UINT8 or size != height * width * channels or size > capacity:
            return None  # Torn, or not ours: the lock below would say so, but the copy must not go astray first.
        begin = start + SLOT_HEADER_BYTES
        picture = self._bytes[begin : begin + size].copy()
        if int(self._words[at]) != wanted:
            return None
        shape = (height, width) if channels == 1 else (height, width, channels)
        return Frame(picture.reshape(shape), number, self.epoch, step, episode, *figures)

    def _reopen(self) -> None:
        self.close()
        self._open()

    def _open(self) -> None:
        with self.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < HEADER_BYTES:
                raise LayoutError(str(self.path), f"it has {size} bytes, and the header alone has {HEADER_BYTES}")
            self._map = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        self._header = np.frombuffer(self._map, np.uint64, HEADER_BYTES // _WORD)
        self._words = np.frombuffer(self._map, np.uint64, size // _WORD)
        self._reals = np.frombuffer(self._map, np.float64, size // _WORD)
        self._bytes = np.frombuffer(self._map, np.uint8)
        if reason := self._what_is_wrong(size):
            self.close()
            raise LayoutError(str(self.path), reason)

    def _what_is_wrong(self, size: int) -> str:
        header = [int(each) for each in self._header[:12]]
        if header[0] != MAGIC:
            return "it does not begin as one"
        if header[1] != LAYOUT:
            return f"it has layout {header[1]}, and {LAYOUT} is known here"
        slots, stride, capacity = header[_SLOTS], header[_STRIDE], header[_CAPACITY]
        whole = header[2] == HEADER_BYTES and 0 < slots <= _MOST_SLOTS and stride == SLOT_HEADER_BYTES + capacity
        if not whole or stride % _WORD or HEADER_BYTES + slots * stride > size:
            return f"its header does not fit its {size} bytes"
        return ""


def _boot() -> int:
    try:
        return int(Path("/proc/sys/kernel/random/boot_id").read_text().replace("-", "")[:16], 16)
    except (OSError, ValueError):
        return 0
