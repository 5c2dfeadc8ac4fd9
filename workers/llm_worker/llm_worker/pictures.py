"""Pictures for models that see: PNG, written with nothing but zlib."""

import base64
import struct
import zlib
from typing import Any

import numpy as np

from llm_worker.problems import RefusedError

__all__ = ["as_png", "picture_of"]

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_COLOR_TYPES = {1: 0, 3: 2, 4: 6}
_MOST_PIXELS = 768
"""Larger pictures are thinned out: endpoints make them smaller anyway, and bill the larger ones."""


def picture_of(pixels: Any) -> str:
    """Return a picture in base64; RefusedError if the environment gave none."""
    array = np.asarray(pixels) if pixels is not None else None
    if array is None or array.dtype != np.uint8 or array.ndim not in {2, 3}:
        raise RefusedError("vision: this environment renders no picture; set vision: false")
    step = max(1, -(-max(array.shape[:2]) // _MOST_PIXELS))
    return base64.b64encode(as_png(array[::step, ::step])).decode()


def as_png(pixels: Any) -> bytes:
    """Encode an array of height, width and channels of bytes."""
    array = pixels[:, :, None] if pixels.ndim == 2 else pixels  # noqa: PLR2004 - grey
    height, width, channels = array.shape
    rows = np.zeros((height, 1 + width * channels), np.uint8)  # each row begins with its filter: none
    rows[:, 1:] = array.reshape(height, -1)
    head = struct.pack(">IIBBBBB", width, height, 8, _COLOR_TYPES[channels], 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(rows.tobytes())), (b"IEND", b""))
    return _SIGNATURE + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
