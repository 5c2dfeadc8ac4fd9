"""Frames from the processes that step the environments: the driver, or an actor on the driver's machine.

The environments of all env runners are numbered through: runner 1 has the first ones. A stream is written by one
process, so `grid` tiles the environments of the first env runner.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from mosaic_worker.frames.fastlane import FastLane
from mosaic_worker.frames.settings import FastLaneSettings, RecordSettings

__all__ = ["frame_settings", "watcher"]

_lanes: dict[str, tuple[FastLane, Iterator[int]]] = {}
"""The lane of this process and the numbers of its environments, by the run's folder."""


def frame_settings(config: Any, environ: Mapping[str, str], run_dir: Path) -> dict[str, Any] | None:
    """What env runners need to know to show frames, as plain values; None if the run wants no frames."""
    settings, record = config.fastlane_settings(environ), config.record_settings(environ)
    folder = environ.get("MOSAIC_FASTLANE_DIR")
    lane = FastLane(settings, folder, record=record, run_dir=run_dir)
    if not lane.wants_frames:
        return None
    return {"settings": settings.model_dump(), "record": str(record), "folder": folder, "run_dir": str(run_dir)}


def watcher(frames: Mapping[str, Any], worker_index: int, count: int) -> Callable[[Any], Any]:
    """Return a function that wraps an environment of an env runner; `count` is the number that each runner has."""
    run_dir = str(frames["run_dir"])
    if run_dir not in _lanes:
        record = RecordSettings.parse(frames["record"])
        settings = FastLaneSettings(**frames["settings"])
        lane = FastLane(settings, frames["folder"], record=record, run_dir=Path(run_dir))
        _lanes[run_dir] = lane, itertools.count()
    lane, numbers = _lanes[run_dir]
    first = max(0, worker_index - 1) * count
    return lambda env: lane.wrap(env, first + next(numbers) % count)
