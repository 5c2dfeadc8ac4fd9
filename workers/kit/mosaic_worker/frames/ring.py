"""The writer of FastLane: frames in shared memory, for any number of readers, none of which can block it.

A stream is one file in shared memory: a header, and a few slots that are written in turn. A slot holds a frame and its
figures. Each slot has a sequence lock, odd while the slot is being written. A reader that finds the same even number
before and after copying a slot has a complete frame. The layout is in `docs/protocol.md`, part 6.
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
# Words of the header: the writer's pid, and those that change after the file was made.
_PID, _STATE, _PUBLISHED = 7, 10, 11
# Bytes of shared memory to leave free for others.
_SPARE_BYTES = 16 * 1024 * 1024
_CHANNELS = (1, 3, 4)

Frame = npt.NDArray[np.uint8]


class FrameWriter:
    """Writes one stream of frames. A stream has one writer, which never waits for a reader."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        stream: str = "main",
        slots: int = 4,
        *,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write to `<folder>/<stream>.ring`, which the first frame creates."""
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
            self._let_go()  # the next frame creates another file
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
        """Mark the stream as closed; the owner of the folder removes the file."""
        self._leave(CLOSED)

    # Creating the file, and replacing it for larger frames.

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
        # The lock keeps readers away until the slot has its next frame.
        for slot, ints in enumerate(self._ints):
            ints[0] = 2 * self._next_number(slot) + 1
            ints[1:6] = (height, width, channels, UINT8, array.nbytes)
        self._shape = array.shape

    def _next_number(self, slot: int) -> int:
        """Return the number of the next frame in this slot."""
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
            # Reserve the pages now: writing to a sparse file in a full memory would kill this process (SIGBUS).
            os.posix_fallocate(file, 0, size)
            mapped = mmap.mmap(file, size)
        except OSError as error:
            scratch.unlink(missing_ok=True)
            raise FrameError(f"{self.path.parent} has no room for {size} bytes of frames: {error.strerror}") from error
        finally:
            os.close(file)
        header = np.frombuffer(mapped, np.uint64, HEADER_BYTES // _WORD)
        pid, started, boot = _identity(os.getpid())
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
        """Set the state of the present file, for its readers, and release it."""
        if not self._is_cut():
            self._header[_STATE] = state
        self._let_go()

    def _is_cut(self) -> bool:
        """Whether the file was truncated: a write to its mapping would kill this process (SIGBUS)."""
        return self._map is not None and self._map.size() < len(self._map)

    def _let_go(self) -> None:
        if self._map is None:
            return
        self._header = np.zeros_like(self._header)
        self._ints, self._floats, self._pixels, self._shaped, self._shape = [], [], [], [], ()
        self._capacity = 0
        mapped, self._map = self._map, None
        # If somebody still holds a view, the memory is freed with the last one.
        with contextlib.suppress(BufferError):
            mapped.close()


def require_unused(path: Path) -> None:
    """Raise FrameError if another living process writes the stream."""
    try:
        header = np.fromfile(path, np.uint64, HEADER_BYTES // _WORD)
    except FileNotFoundError:
        return
    if header.size < HEADER_BYTES // _WORD or header[_STATE] != LIVE or header[_PID] == os.getpid():
        return
    pid, started, boot = (int(word) for word in header[_PID : _PID + 3])
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        if _identity(pid) == (pid, started, boot):
            raise FrameError(f"{path} is written by process {pid} already")


def _identity(pid: int) -> tuple[int, int, int]:
    """Return pid, start time in clock ticks since boot, and boot id, which together identify a process."""
    stat = Path(f"/proc/{pid}/stat").read_bytes().rsplit(b")", 1)[1].split()
    if stat[0] in {b"Z", b"X"}:
        raise ProcessLookupError(f"process {pid} has ended")
    try:
        boot = int(Path("/proc/sys/kernel/random/boot_id").read_text().replace("-", "")[:16], 16)
    except (OSError, ValueError):
        boot = 0
    return pid, int(stat[19]), boot
