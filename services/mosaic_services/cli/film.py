"""Pictures as files: one as PNG, some seconds of them as GIF or MP4."""

from __future__ import annotations

import importlib
import os
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from mosaic_services.cli.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mosaic_bus.frames import Frame
    from mosaic_bus.pictures import PictureFeed

__all__ = ["require", "write"]

_KINDS = (".png", ".gif", ".mp4")
# GIF counts in hundredths of a second.
_GIF_FPS = 20
_MP4_FPS = 30
_NO_FFMPEG = "pip install imageio-ffmpeg (or mosaic-services[video]), or save a .gif"


def require(path: Path) -> None:
    """Refuse at once a file that cannot be written."""
    if path.suffix.lower() not in _KINDS:
        raise InputError(
            f"{path} is neither {', '.join(_KINDS[:-1])} nor {_KINDS[-1]}", "its ending says what to write"
        )
    folder = path.absolute().parent
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise InputError(f"the folder {folder} cannot be written to")
    if path.suffix.lower() == ".mp4":
        _ffmpeg()


def write(path: Path, first: Frame, feed: PictureFeed, seconds: float) -> int:
    """Write a picture, or a film that begins with it; return how many pictures are in it. Whole or not at all."""
    scratch = path.with_name(f".{path.name}.new{path.suffix}")
    kind = path.suffix.lower()
    try:
        if kind == ".png":
            _image(first).save(scratch, "PNG")
            count = 1
        elif kind == ".gif":
            count = _write_gif(scratch, first, feed, seconds)
        else:
            count = _write_mp4(scratch, first, feed, seconds)
        os.replace(scratch, path)  # noqa: PTH105 - a file in place of another
    finally:
        scratch.unlink(missing_ok=True)
    return count


def _image(frame: Frame, size: tuple[int, int] | None = None) -> Image.Image:
    image = Image.fromarray(frame.picture)
    if size is not None:
        image = image.convert("RGB")
        image = image if image.size == size else image.resize(size)
    return image


def _sample(first: Frame, feed: PictureFeed, fps: int, seconds: float) -> Iterator[Frame]:
    """The picture of each moment, so many times a second: what comes faster is left out, what stays is repeated."""
    begun = time.monotonic()
    held = first
    for tick in range(max(1, round(fps * seconds))):
        until = begun + tick / fps
        while (left := until - time.monotonic()) > 0:
            held = feed.next(left) or held
        yield held


def _write_gif(path: Path, first: Frame, feed: PictureFeed, seconds: float) -> int:
    size = (first.picture.shape[1], first.picture.shape[0])
    # A palette at once: what waits to be written has one byte for a pixel, not three.
    images = [_image(each, size).quantize() for each in _sample(first, feed, _GIF_FPS, seconds)]
    images[0].save(path, "GIF", save_all=True, append_images=images[1:], duration=1000 // _GIF_FPS, loop=0)
    return len(images)


def _write_mp4(path: Path, first: Frame, feed: PictureFeed, seconds: float) -> int:
    # Players want an even number of pixels either way.
    size = (first.picture.shape[1] // 2 * 2 or 2, first.picture.shape[0] // 2 * 2 or 2)
    writer = _ffmpeg().write_frames(str(path), size, fps=_MP4_FPS, macro_block_size=2, ffmpeg_log_level="error")
    writer.send(None)
    count = 0
    try:
        for each in _sample(first, feed, _MP4_FPS, seconds):
            writer.send(np.ascontiguousarray(_image(each, size)))
            count += 1
    finally:
        writer.close()
    return count


def _ffmpeg() -> Any:
    try:
        return importlib.import_module("imageio_ffmpeg")
    except ImportError:
        raise InputError("an .mp4 needs imageio-ffmpeg, which is not installed", _NO_FFMPEG) from None
