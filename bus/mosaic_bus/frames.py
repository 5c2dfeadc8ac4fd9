"""The reading side of FastLane: the newest picture of a stream, from shared memory, without disturbing its writer.

The layout of the file is in `docs/protocol.md`, part 6; the writing side is `mosaic_worker.frames`. A reader maps the
file for reading only, copies a slot, and keeps the copy only if the slot's lock number was even and the same before
and after. It never waits, never writes, and never removes anything.
"""

from __future__ import annotations

import math
import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

import numpy as np

from mosaic_bus.errors import LayoutError, StaleFrameError

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

    from mosaic_bus.messages import FrameHandle

__all__ = ["Frame", "FrameFacts", "FrameReader"]

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

Taken = TypeVar("Taken")


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
    stream: str = "main"


@dataclass(frozen=True, slots=True)
class FrameFacts:
    """All about a picture but the picture."""

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
    """Reads one stream of pictures; follows it to a new file when the writer had to make a larger one."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open a ring; raise `LayoutError` if it is none, and `FileNotFoundError` if it is not there."""
        self.path = Path(path)
        self.inode = 0
        self._map: mmap.mmap
        self._header: npt.NDArray[np.uint64]
        self._words: npt.NDArray[np.uint64]
        self._reals: npt.NDArray[np.float64]
        self._bytes: npt.NDArray[np.uint8]
        # As they were when the file was found to be in order: what becomes of its header later leads nobody astray.
        self._slots = self._stride = self._capacity = 0
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
        return self._slots

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
        return self._newest(self._copy)

    def facts(self) -> FrameFacts | None:
        """Say all about the newest whole picture, without copying it; None if there is none yet."""
        return self._newest(self._facts)

    def refresh(self) -> None:
        """Look whether the file is still the one that was opened; open another that has taken its place.

        Another writer of the same stream, after the first has closed or died, makes another file. Raise
        `FileNotFoundError` if there is none any more, and `LayoutError` if it has been cut short.
        """
        found = self.path.stat()
        if found.st_ino != self.inode:
            self._reopen()
        elif found.st_size < len(self._map):
            raise LayoutError(str(self.path), f"it has been cut from {len(self._map)} to {found.st_size} bytes")

    def _newest(self, take: Callable[[int], Taken | None]) -> Taken | None:
        if int(self._header[_STATE]) == REPLACED:
            self._reopen()
        for _ in range(_TRIES):
            newest = self.published - 1
            # One that is being overwritten, or was when its writer died, is passed over for the one before it.
            for number in range(newest, max(-1, newest - self._slots), -1):
                if taken := take(number):
                    return taken
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
        self._words = self._words[:0].copy()
        self._reals = self._reals[:0].copy()
        self._bytes = self._bytes[:0].copy()
        self._map.close()

    def _facts(self, number: int) -> FrameFacts | None:
        """Read a picture's figures if it is there and stays whole meanwhile."""
        at = (HEADER_BYTES + (number % self._slots) * self._stride) // _WORD
        wanted = 2 * number + 2
        if int(self._words[at]) != wanted:
            return None
        height, width, channels, kind, size, step, episode = (int(each) for each in self._words[at + 1 : at + 8])
        figures = [float(each) for each in self._reals[at + 8 : at + 13]]
        if kind != _UINT8 or size != height * width * channels or size > self._capacity:
            return None  # Torn, or not ours: the lock would say so, but a copy must not go astray first.
        if int(self._words[at]) != wanted:
            return None
        shape = (height, width) if channels == 1 else (height, width, channels)
        return FrameFacts(shape, number, self.epoch, step, episode, *figures)

    def _copy(self, number: int) -> Frame | None:
        """Copy a picture if it is there and stays whole meanwhile."""
        facts = self._facts(number)
        if facts is None:
            return None
        start = HEADER_BYTES + (number % self._slots) * self._stride
        begin = start + SLOT_HEADER_BYTES
        picture = self._bytes[begin : begin + math.prod(facts.shape)].copy()
        if int(self._words[start // _WORD]) != 2 * number + 2:
            return None
        return Frame(
            picture.reshape(facts.shape),
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

    def _reopen(self) -> None:
        self.close()
        self._open()

    def _open(self) -> None:
        with self.path.open("rb") as file:
            found = os.fstat(file.fileno())
            size, self.inode = found.st_size, found.st_ino
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
        self._slots, self._stride, self._capacity = (int(self._header[word]) for word in (_SLOTS, _STRIDE, _CAPACITY))

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
