"""Operations on frames: check, shrink, tile.

Pure functions of numpy. After `as_rgb`, a frame is height × width × 3 of uint8.
"""

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from mosaic_worker.errors import FrameError

__all__ = ["Frame", "as_rgb", "columns_of", "pad", "shrink", "tile"]

Frame = npt.NDArray[np.uint8]
_SAMPLES = 4
"""Maximum number of pixels, each way, that are averaged into one; more would cost time and show no difference."""


def as_rgb(value: Any) -> Frame:
    """Return what an environment rendered as an RGB frame; FrameError if it is not an image."""
    if value is None:
        raise FrameError("it rendered None")
    if not isinstance(value, np.ndarray):
        raise FrameError(f"it rendered a {type(value).__name__}, not an array of pixels")
    depth = {2: 1, 3: value.shape[-1]}.get(value.ndim, 0)
    if value.dtype != np.uint8 or depth not in {1, 3, 4} or value.size == 0:
        raise FrameError(
            f"it rendered {value.dtype} {value.shape}; a frame is height × width, or × 1, 3 or 4 channels, of uint8"
        )
    if depth == 1:
        return np.repeat(value.reshape(*value.shape[:2], 1), 3, axis=2)
    return value[:, :, :3]


def shrink(frame: Frame, max_dim: int) -> Frame:
    """Divide the size by the smallest integer that brings both sides to `max_dim` or less, averaging pixels."""
    height, width = frame.shape[:2]
    factor = -(-max(height, width) // max_dim)
    if factor == 1:
        return frame
    low, narrow = max(1, height // factor), max(1, width // factor)
    stride = -(-factor // _SAMPLES)
    tops, lefts = range(0, min(factor, height), stride), range(0, min(factor, width), stride)
    rows = np.zeros((low, width, 3), np.uint16)
    for top in tops:
        rows += frame[top::factor][:low]
    small = np.empty((low, narrow, 3), np.uint8)
    # One colour at a time: numpy is several times slower on an innermost axis of length three.
    for colour in range(3):
        plane = rows[:, :, colour]
        total = reduce(np.add, [plane[:, left::factor][:, :narrow] for left in lefts])
        small[:, :, colour] = total // np.uint16(len(tops) * len(lefts))
    return small


def columns_of(count: int) -> int:
    """Return the number of columns of a grid of `count` frames: as square as possible, wider rather than higher."""
    return math.isqrt(max(count, 1) - 1) + 1


def tile(frames: Sequence[Frame | None]) -> Frame:
    """Arrange frames in rows; each is centred in its cell, on black."""
    columns = columns_of(len(frames))
    rows = -(-len(frames) // columns)
    height, width = _largest([frame for frame in frames if frame is not None])
    canvas = np.zeros((rows * height, columns * width, 3), np.uint8)
    for place, frame in enumerate(frames):
        if frame is not None:
            top, left = place // columns * height, place % columns * width
            _paste(canvas[top : top + height, left : left + width], frame)
    return canvas


def pad(frames: Sequence[Frame]) -> list[Frame]:
    """Pad frames to one size, that of the highest and the widest; frames of that size are returned unchanged."""
    height, width = _largest(frames)
    return [
        frame if frame.shape[:2] == (height, width) else _paste(np.zeros((height, width, 3), np.uint8), frame)
        for frame in frames
    ]


def _largest(frames: Sequence[Frame]) -> tuple[int, int]:
    return max(frame.shape[0] for frame in frames), max(frame.shape[1] for frame in frames)


def _paste(cell: Frame, frame: Frame) -> Frame:
    height, width = frame.shape[:2]
    top, left = (cell.shape[0] - height) // 2, (cell.shape[1] - width) // 2
    cell[top : top + height, left : left + width] = frame
    return cell
