"""Writes animated PNG: lossless video that every browser plays, without a dependency.

After the first frame only the rectangle that changed is written, which keeps files small. The format is defined in
https://www.w3.org/TR/png-3/ (chunks acTL, fcTL and fdAT).
"""

import struct
import zlib
from collections.abc import Sequence

import numpy as np

from mosaic_worker.frames.pixels import Frame, pad

__all__ = ["encode"]

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_BITS, _RGB = 8, 2
_FOR_EVER = 0
_KEEP, _REPLACE = 0, 0  # dispose and blend operations of a frame
_MOST_MS = 0xFFFF


def encode(frames: Sequence[Frame], seconds: float) -> bytes:
    """Return RGB frames as one animated PNG; each frame is shown for `seconds`."""
    frames = pad(frames)
    height, width = frames[0].shape[:2]
    show_ms = round(min(max(seconds * 1000, 1), _MOST_MS))
    header = struct.pack(">IIBBBBB", width, height, _BITS, _RGB, 0, 0, 0)
    chunks = [_chunk(b"IHDR", header), _chunk(b"acTL", struct.pack(">II", len(frames), _FOR_EVER))]
    sequence = 0
    for number, frame in enumerate(frames):
        top, left, bottom, right = _changed(frames[number - 1], frame) if number else (0, 0, height, width)
        place = (right - left, bottom - top, left, top)
        control = struct.pack(">IIIIIHHBB", sequence, *place, show_ms, 1000, _KEEP, _REPLACE)
        chunks.append(_chunk(b"fcTL", control))
        pixels = _compress(frame[top:bottom, left:right])
        sequence += 1
        if number == 0:
            chunks.append(_chunk(b"IDAT", pixels))
        else:
            chunks.append(_chunk(b"fdAT", struct.pack(">I", sequence) + pixels))
            sequence += 1
    return b"".join([_SIGNATURE, *chunks, _chunk(b"IEND", b"")])


def _changed(before: Frame, after: Frame) -> tuple[int, int, int, int]:
    """Return the rectangle that differs (top, left, bottom, right); one pixel if the frames are equal."""
    differs = (before != after).any(axis=2)
    rows, columns = np.flatnonzero(differs.any(axis=1)), np.flatnonzero(differs.any(axis=0))
    if rows.size == 0:
        return 0, 0, 1, 1
    return int(rows[0]), int(columns[0]), int(rows[-1]) + 1, int(columns[-1]) + 1


def _compress(frame: Frame) -> bytes:
    height, width = frame.shape[:2]
    lines = np.zeros((height, 1 + width * 3), np.uint8)  # each line begins with its filter type: 0, none
    lines[:, 1:] = frame.reshape(height, width * 3)
    return zlib.compress(lines.tobytes())


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
