"""Runs of the stress worker that publish frames with embedded checksums, and helpers to inspect them."""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
from PIL import Image
from stack import HOST, Stack, wait_until

from mosaic_bus import topics
from mosaic_bus.commands import FrameStreams, Stats
from mosaic_bus.errors import CommandRefusedError
from mosaic_bus.messages import FrameHandle

if TYPE_CHECKING:
    from pathlib import Path

    from mosaic_bus.commands import FrameStream
    from mosaic_bus.frames import Frame

SUPERVISOR = f"supervisor.{HOST}"
ENDLESS = 10**9


def submit(stack: Stack, frames: int = ENDLESS, **config: Any) -> str:
    profile = config.pop("profile", "default")
    return stack.submit(config={"frames": frames, "end": "hang", **config}, grace_s=5, profile=profile)


def streams(stack: Stack, run: str) -> list[FrameStream]:
    try:
        return stack.bus.request(SUPERVISOR, FrameStreams(run=run)).streams
    except CommandRefusedError as error:
        if error.code != "unknown_run":
            raise
        return []


def wait_for_frames(stack: Stack, run: str) -> FrameStream:
    return wait_until("there are pictures", lambda: streams(stack, run))[0]


def counter(stack: Stack, name: str) -> float:
    return stack.bus.request(SUPERVISOR, Stats()).counters[name]


def is_whole(frame: Frame) -> bool:
    flat = frame.pixels.reshape(-1)
    number = int(np.frombuffer(flat[4:12].tobytes(), np.uint64)[0])
    return number == frame.number and zlib.crc32(flat[4:]) == int.from_bytes(flat[:4], "little")


def handles(stack: Stack, run: str, count: int) -> list[tuple[float, FrameHandle]]:
    found: list[tuple[float, FrameHandle]] = []
    for message in stack.bus.listen(topics.frame(run), timeout=20):
        assert message.buffers == ()
        found.append((message.header.mono, FrameHandle.model_validate(message.payload)))
        if len(found) == count:
            break
    return found


def folder(stack: Stack, run: str, attempt: int = 1) -> Path:
    return stack.home.frames / f"{run}.{attempt}"


def run_host(stack: Stack, run: str) -> psutil.Process:
    return psutil.Process(json.loads((stack.home.runs / run / "1" / "host.json").read_bytes())["pid"])


def end(stack: Stack, run: str) -> None:
    stack.cancel(run)
    stack.wait_final(run)
    wait_until("its folder is gone", lambda: not folder(stack, run).exists())


def pixels(file: Path) -> np.ndarray:
    with Image.open(file) as image:
        return np.asarray(image)
