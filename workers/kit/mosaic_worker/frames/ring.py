"""The writing side of FastLane: frames in shared memory, for any number of readers that the writer never notices.

A stream of frames is one file in a folder of shared memory: a header, and a few slots that are written in turn. A
frame and its figures are in the slot together. Each slot has a lock number, odd while the slot is being written; a
reader that finds the same even number before and after it has copied a slot has a whole frame. The layout is in
`docs/protocol.md`, part 6.
"""

import contextlib
import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mosaic_worker.errors import FrameError

__all__ = ["FrameWriter", "require_unused"]

MAGIC = int.from_bytes(b"MOSAICFL", "little")
LAYOUT = 1
HEADER_BYTES = 256
SLOT_HEADER_BYTES = 128
LIVE, CLOSED, REPLACED = 1, 2, 3
UINT8 = 1
_WORD = 8
_ALIGN = 64
# Words of the header: who writes, and those that change after it was made.
_PID, _STATE, _PUBLISHED = 7, 10, 11
# Room that is left to others in the shared memory.
_SPARE_BYTES = 16 * 1024 * 1024
_CHANNELS = (1, 3, 4)

Frame = npt.NDArray[np.uint8]


class FrameWriter:
    """Writes one stream of frames. It is the only writer of its stream, and never waits for a reader."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        stream: str = "main",
        slots: int = 4,
        *,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write to `<folder>/<stream>.ring`, which is made with the first frame."""
        self.path = Path(folder) / f"{stream}.ring"
        self.epoch = 0
        self.published = 0
        self._slots = slots
        self._wall = wall
        self._clock = clock
        self._capacity = 0
        self._map: mmap.mmap | None = None
        self._header: npt.NDArray[np.uint64] = np.zeros(HEADER_BYTES // _WORD, np.uint64)
        self._ints: list[npt.NDArray[np.uint64]] = []
        self._floats: list[npt.NDArray[np.float64]] = []
        self._pixels: list[Frame] = []
        self._shaped: list[Frame] = []
        self._shape: tuple[int, ...] = ()

    def write(
        self,
        frame: Any,
        *,
        step: int = 0,
        episode: int = 0,
        last_reward: float = float("nan"),
        rolling_return: float = float("nan"),
        step_rate_hz: float = float("nan"),
    ) -> int:
        """Publish a frame (height × width, or × 1, 3 or 4 channels, of uint8) with its figures; return its number."""
        if self._is_cut():
            self._let_go()  # and begin another file
        if frame.shape != self._shape:
            self._fit(frame)
        number = self.published
        slot = number % self._slots
        ints = self._ints[slot]
        ints[0] = 2 * number + 1
        np.copyto(self._shaped[slot], frame)
        ints[6] = step
        ints[7] = episode
        self._floats[slot][8:13] = (self._wall(), self._clock(), last_reward, rolling_return, step_rate_hz)
        ints[0] = 2 * number + 2
        self.published = number + 1
        self._header[_PUBLISHED] = number + 1
        return number

    def close(self) -> None:
        """Say that no more will come; the file stays until whoever gave the folder removes it."""
        self._leave(CLOSED)

    # How the file is made, and made anew for larger frames.

    def _fit(self, frame: Any) -> None:
        """Make room for frames of another shape."""
        array = np.asarray(frame)
        if array.dtype != np.uint8 or array.ndim not in {2, 3} or (array.ndim == 3 and array.shape[2] not in _CHANNELS):  # noqa: PLR2004 - dimensions
            raise FrameError(
                f"a frame is height × width, or × 1, 3 or 4 channels, of uint8; this is {array.dtype} {array.shape}"
            )
        if array.size == 0:
            raise FrameError(f"a frame of shape {array.shape} has no pixels")
        if array.nbytes > self._capacity:
            self._make_file(array.nbytes)
        height, width, channels = (*array.shape, 1)[:3]
        self._shaped = [pixels[: array.nbytes].reshape(array.shape) for pixels in self._pixels]
        # Each slot says what it holds; the lock keeps readers away while the next frame is not there yet.
        for slot, ints in enumerate(self._ints):
            ints[0] = 2 * self._next_number(slot) + 1
            ints[1:6] = (height, width, channels, UINT8, array.nbytes)
        self._shape = array.shape

    def _next_number(self, slot: int) -> int:
        """The number of the next frame that this slot will hold."""
        return self.published + (slot - self.published) % self._slots

    def _make_file(self, capacity: int) -> None:
        stride = -(-(SLOT_HEADER_BYTES + capacity) // _ALIGN) * _ALIGN
        size = HEADER_BYTES + self._slots * stride
        scratch = self.path.with_suffix(".new")
        self._require_room(size)
        with contextlib.suppress(FileNotFoundError):
            scratch.unlink()
        file = os.open(scratch, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            # Pages are taken now: a file that only claims to be so long kills whoever writes where there is no room.
            os.posix_fallocate(file, 0, size)
            mapped = mmap.mmap(file, size)
        except OSError as error:
            scratch.unlink(missing_ok=True)
            raise FrameError(f"{self.path.parent} has no room for {size} bytes of frames: {error.strerror}") from error
        finally:
            os.close(file)
        header = np.frombuffer(mapped, np.uint64, HEADER_BYTES // _WORD)
        pid, started, boot = _who_am_i()
        header[:12] = (
            *(MAGIC, LAYOUT, HEADER_BYTES, self._slots, stride, stride - SLOT_HEADER_BYTES),
            *(self.epoch + 1, pid, started, boot, LIVE, self.published),
        )
        scratch.replace(self.path)
        self._leave(REPLACED)
        self.epoch += 1
        self._capacity = stride - SLOT_HEADER_BYTES
        self._map, self._header = mapped, header
        starts = [HEADER_BYTES + slot * stride for slot in range(self._slots)]
        words = SLOT_HEADER_BYTES // _WORD
        self._ints = [np.frombuffer(mapped, np.uint64, words, start) for start in starts]
        self._floats = [np.frombuffer(mapped, np.float64, words, start) for start in starts]
        self._pixels = [np.frombuffer(mapped, np.uint8, self._capacity, start + SLOT_HEADER_BYTES) for start in starts]

    def _require_room(self, size: int) -> None:
        found = os.statvfs(self.path.parent)
        free = found.f_bavail * found.f_frsize
        if size + _SPARE_BYTES > free:
            raise FrameError(
                f"{self.path.parent} has {free} bytes free, and {size} are needed for frames of this size: "
                "use a smaller maximum dimension, or make room"
            )

    def _leave(self, state: int) -> None:
        """Tell readers of the present file why nothing more comes, and let go of it."""
        if not self._is_cut():
            self._header[_STATE] = state
        self._let_go()

    def _is_cut(self) -> bool:
        """Whether somebody has cut the file: who then writes to its mapping is killed on the spot (SIGBUS)."""
        return self._map is not None and self._map.size() < len(self._map)

    def _let_go(self) -> None:
        if self._map is None:
            return
        self._header = np.zeros_like(self._header)
        self._ints, self._floats, self._pixels, self._shaped, self._shape = [], [], [], [], ()
        self._capacity = 0
        mapped, self._map = self._map, None
        # Somebody may still hold a view of it; the memory goes when the last one does.
        with contextlib.suppress(BufferError):
            mapped.close()


def require_unused(path: Path) -> None:
    """Refuse a stream that another living process writes: it has one writer."""
    try:
        header = np.fromfile(path, np.uint64, HEADER_BYTES // _WORD)
    except FileNotFoundError:
        return
    if header.size < HEADER_BYTES // _WORD or header[_STATE] != LIVE or header[_PID] == os.getpid():
        return
    if Path(f"/proc/{header[_PID]}").exists():
        raise FrameError(f"{path} is written by process {header[_PID]} already")


def _who_am_i() -> tuple[int, int, int]:
    """Our pid, when we started in clock ticks since boot, and which boot: together they name one process for ever."""
    stat = Path("/proc/self/stat").read_bytes().rsplit(b")", 1)[1].split()
    try:
        boot = int(Path("/proc/sys/kernel/random/boot_id").read_text().replace("-", "")[:16], 16)
    except (OSError, ValueError):
        boot = 0
    return os.getpid(), int(stat[19]), boot
