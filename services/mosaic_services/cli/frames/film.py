"""Saves frames: one as PNG, several seconds as GIF or MP4, written as they arrive."""

from __future__ import annotations

import importlib
import os
import time
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import GifImagePlugin, Image, ImageChops

from mosaic_services.cli.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from mosaic_bus.frames import Frame
    from mosaic_bus.frames.feed import FrameFeed

__all__ = ["length", "require", "write"]

_KINDS = (".png", ".gif", ".mp4")
# GIF stores durations as two bytes of hundredths of a second.
_GIF_FPS = 20
_GIF_LONGEST = 600 * _GIF_FPS
_MP4_FPS = 30
_LATE_S = 0.001
_NO_FFMPEG = "pip install imageio-ffmpeg (or mosaic-services[video]), or save a .gif"


def require(path: Path) -> None:
    """Refuse a file that cannot be written, before anything is recorded."""
    if path.suffix.lower() not in _KINDS:
        raise InputError(
            f"{path} is neither {', '.join(_KINDS[:-1])} nor {_KINDS[-1]}", "the extension selects the format"
        )
    folder = path.absolute().parent
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        raise InputError(f"the folder {folder} cannot be written to")
    if path.suffix.lower() == ".mp4":
        _ffmpeg()


def length(path: Path, seconds: float) -> int:
    """The number of frames in a film of this length."""
    return max(1, round(seconds * (_GIF_FPS if path.suffix.lower() == ".gif" else _MP4_FPS)))


def write(path: Path, first: Frame, feed: FrameFeed, seconds: float, go_on: Callable[[int], bool]) -> int:
    """Write a frame, or a film that starts with it; return the number of frames. The file is complete or absent.

    `go_on` is called with the number of frames so far and returns whether to continue.
    """
    scratch = path.with_name(f".{path.name}.new{path.suffix}")
    kind = path.suffix.lower()
    count = length(path, seconds)
    try:
        if kind == ".png":
            _image(first).save(scratch, "PNG")
            count = 1
        elif kind == ".gif":
            count = _write_gif(scratch, _sample(first, feed, _GIF_FPS, count, go_on))
        else:
            count = _write_mp4(scratch, first, _sample(first, feed, _MP4_FPS, count, go_on))
        os.replace(scratch, path)  # noqa: PTH105 - a file in place of another
    finally:
        scratch.unlink(missing_ok=True)
    return count


def _image(frame: Frame, size: tuple[int, int] | None = None) -> Image.Image:
    image = Image.fromarray(frame.pixels)
    if size is not None:
        image = image.convert("RGB")
        image = image if image.size == size else image.resize(size)
    return image


def _sample(first: Frame, feed: FrameFeed, fps: int, count: int, go_on: Callable[[int], bool]) -> Iterator[Frame]:
    """Sample frames at a fixed rate: surplus frames are skipped, missing ones repeated."""
    begun = time.monotonic()
    held = first
    for tick in range(1, count + 1):
        yield held
        if not go_on(tick) or tick == count or feed.is_over:
            return
        until = begun + tick / fps
        while True:
            # Even if it is late: a film whose frames are slow to write must not stand still.
            held = feed.next(max(_LATE_S, until - time.monotonic())) or held
            if time.monotonic() >= until:
                break


def _write_gif(path: Path, frames: Iterator[Frame]) -> int:
    """Write each frame when the next one arrives; Image.save would keep all of them in memory."""
    count = 0
    with path.open("wb") as file:
        for part, corner, ticks in _changes(frames):
            image = part.quantize()
            if not count:
                file.writelines(GifImagePlugin.getheader(image, info={"loop": 0})[0])
            duration = ticks * 1000 // _GIF_FPS
            file.writelines(GifImagePlugin.getdata(image, corner, duration=duration, include_color_table=count > 0))
            count += ticks
        file.write(b";")
    return count


def _changes(frames: Iterator[Frame]) -> Iterator[tuple[Image.Image, tuple[int, int], int]]:
    """Yield the region of each frame that differs from the previous one, its position and its duration in frames."""
    first = next(frames)
    shown = part = _image(first, (first.pixels.shape[1], first.pixels.shape[0]))
    corner, ticks = (0, 0), 1
    for frame in frames:
        image = _image(frame, shown.size)
        box = ImageChops.difference(shown, image).getbbox()
        if box is None and ticks < _GIF_LONGEST:
            ticks += 1
            continue
        yield part, corner, ticks
        left, top, right, bottom = box or (0, 0, 1, 1)
        shown, part, corner, ticks = image, image.crop((left, top, right, bottom)), (left, top), 1
    yield part, corner, ticks


def _write_mp4(path: Path, first: Frame, frames: Iterator[Frame]) -> int:
    # Players require an even width and height.
    size = (first.pixels.shape[1] // 2 * 2 or 2, first.pixels.shape[0] // 2 * 2 or 2)
    writer = _ffmpeg().write_frames(str(path), size, fps=_MP4_FPS, macro_block_size=2, ffmpeg_log_level="error")
    writer.send(None)
    count = 0
    try:
        for each in frames:
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
