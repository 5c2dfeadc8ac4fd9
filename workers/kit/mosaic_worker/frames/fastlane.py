"""FastLane in a worker: wraps environments so that people can watch them while they train.

A `FastLane` is one stream of frames of one run. `lane.wrap(env, index)` returns a wrapper that counts steps and, when
a frame is due, renders and publishes it. If the run wants no frames, it returns the environment itself. A failure of
frames never reaches the training: it is logged once, and the frames end.
"""

import atexit
import contextlib
import math
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mosaic_worker.emitter import Emitter
from mosaic_worker.errors import FrameError
from mosaic_worker.frames.pixels import Frame, columns_of, shrink, tile
from mosaic_worker.frames.recorder import Recorder
from mosaic_worker.frames.ring import FrameWriter, require_unused
from mosaic_worker.frames.settings import FastLaneSettings, RecordSettings
from mosaic_worker.frames.watch import Watch, as_number
from mosaic_worker.frames.wrappers import FastLaneTelemetryWrapper, wrapper_of
from mosaic_worker.stdout import note

__all__ = ["FOLDER", "FastLane", "FastLaneSettings", "FastLaneTelemetryWrapper", "RecordSettings"]

FOLDER = "MOSAIC_FASTLANE_DIR"


class FastLane:
    """The frames of one run: wraps its environments, publishes what they show, and records episodes."""

    def __init__(
        self,
        settings: FastLaneSettings,
        folder: str | os.PathLike[str] | None,
        *,
        stream: str = "main",
        every_step: bool = False,
        record: RecordSettings | None = None,
        run_dir: Path | None = None,
        emitter: Emitter | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Publish to the ring `stream` in `folder`, if given; record to `run_dir`. Failures are logged.

        With `every_step` no step is left out, which is for people who play.
        """
        self._settings = settings
        self.stream = stream
        self._every_step = every_step
        self._folder = Path(folder) if folder else None
        self._record = record if record is not None and run_dir is not None else RecordSettings()
        self._run_dir = run_dir or Path()
        self._emitter = emitter
        self._clock = clock
        self._watches: dict[int, Watch] = {}
        self._tiles: dict[int, Frame] = {}
        self._writer: FrameWriter | None = None
        self._writer_pid = 0
        self._broken = False

    def __reduce__(self) -> Any:
        """Make a new lane where this one is unpickled, such as in the process of one environment; it logs to stderr."""
        options: dict[str, Any] = {"stream": self.stream, "every_step": self._every_step}
        options |= {"record": self._record, "run_dir": self._run_dir}
        return partial(FastLane, self._settings, self._folder, **options), ()

    @classmethod
    def from_environ(cls, environ: Mapping[str, str], run_dir: Path, emitter: Emitter | None = None) -> "FastLane":
        """Make one from MOSAIC_FASTLANE_* and MOSAIC_RECORD; ConfigError if these are not allowed."""
        return cls(
            FastLaneSettings.from_environ(environ),
            environ.get(FOLDER),
            record=RecordSettings.from_environ(environ),
            run_dir=run_dir,
            emitter=emitter,
        )

    @property
    def wants_frames(self) -> bool:
        """Whether environments will be rendered, and so have to be made with render_mode="rgb_array"."""
        return self._publishes or self._record.is_on

    def wrap(self, env: Any, index: int = 0) -> Any:
        """Wrap environment number `index` of the run; return it unchanged if no frames of it are wanted.

        Gymnasium, old gym and PettingZoo (AEC and Parallel) are recognised. Of two environments with the same index,
        the one wrapped last is shown.
        """
        watch = self.watch(env, index)
        return env if watch is None else wrapper_of(env, watch)

    def watch(self, env: Any, index: int = 0) -> Watch | None:
        """Return the watch of an environment, or None if no frames of it are wanted.

        For callers that have their own wrapper: they call `began`, `stepped` and `close`.
        """
        is_shown = self._publishes and self._takes_part(index)
        is_recorded = self._record.is_on and index == self._settings.slot
        if not is_shown and not is_recorded:
            return None
        watch = Watch(
            self,
            env,
            index,
            interval=self._interval if is_shown else math.inf,
            recorder=self._recorder(env) if is_recorded else None,
            clock=self._clock,
        )
        if index in self._watches:
            self._watches[index].mute()
        self._watches[index] = watch
        return watch

    # For the watches.

    def is_coordinator(self, index: int) -> bool:
        """Whether an environment publishes the grid."""
        return self._settings.mode == "grid" and index == 0

    def can_show(self, watch: Watch) -> bool:
        """Whether a frame of this environment can be published: a tile needs the grid's publisher in its process."""
        if self._settings.mode != "grid":
            return True
        publisher = self._watches.get(0)
        return publisher is not None and publisher.pid == watch.pid

    def show(self, watch: Watch, frame: Frame | None) -> None:
        """Publish a frame, or keep it for the grid."""
        try:
            if self._settings.mode == "grid":
                frame = self._tiling(watch, frame)
            elif frame is not None:
                frame = shrink(frame, self._settings.max_dim)
            if frame is not None:
                self._own_writer().write(frame, **self._figures(watch))
        except (FrameError, OSError) as error:
            self._broken = True
            self.say(f"no live frames: {error}")
            for each in self._watches.values():
                each.mute()

    def leave(self, watch: Watch) -> None:
        """Forget an environment; the stream ends with its publisher."""
        if self._watches.get(watch.index) is not watch:
            return
        del self._watches[watch.index]
        self._tiles.pop(watch.index, None)
        if watch.index == self._publisher:
            self._close_writer()

    def say(self, message: str) -> None:
        """Write a warning to the run's journal or, without an emitter, to its log."""
        if self._emitter is not None:
            self._emitter.log("warning", message)
        else:
            note(message)

    # Publishing.

    @property
    def _interval(self) -> float:
        return 0.0 if self._every_step else self._settings.interval_ms / 1000

    @property
    def _publishes(self) -> bool:
        return self._settings.mode != "off" and self._folder is not None and not self._broken

    @property
    def _publisher(self) -> int:
        return self._settings.slot if self._settings.mode == "single" else 0

    def _takes_part(self, index: int) -> bool:
        settings = self._settings
        return index == settings.slot if settings.mode == "single" else index < settings.grid_limit

    def partners(self) -> list[Watch]:
        """Return the watches of the stream; an environment that is only recorded is not one."""
        return [watch for watch in self._watches.values() if self._takes_part(watch.index)]

    def _tiling(self, watch: Watch, frame: Frame | None) -> Frame | None:
        """Keep the frame of an environment; for the coordinator, return the grid."""
        count = max(each.index for each in self.partners()) + 1
        if frame is not None:
            side = max(1, self._settings.max_dim // columns_of(count))
            self._tiles[watch.index] = np.array(shrink(frame, side))
        if not self.is_coordinator(watch.index) or not self._tiles:
            return None
        return tile([self._tiles.get(index) for index in range(count)])

    def _figures(self, watch: Watch) -> dict[str, Any]:
        """Return the figures of a frame; for a grid, sums of steps, episodes, rates, and means of rewards, returns."""
        watches = [watch] if self._settings.mode == "single" else self.partners()
        return {
            "step": sum(each.step for each in watches),
            "episode": sum(each.episode for each in watches),
            "last_reward": _mean([as_number(each.last_reward) for each in watches]),
            "rolling_return": _mean([each.rolling_return for each in watches]),
            "step_rate_hz": _mean([each.rate_hz for each in watches]) * len(watches),
        }

    def _own_writer(self) -> FrameWriter:
        """Return this process's writer; one that was inherited by a fork belongs to the parent."""
        if self._writer is None or self._writer_pid != os.getpid():
            if self._folder is None:
                raise FrameError("there is no folder to publish to")
            writer = FrameWriter(self._folder, self.stream)
            require_unused(writer.path)
            self._writer, self._writer_pid = writer, os.getpid()
            atexit.register(self._close_writer)
        return self._writer

    def _close_writer(self) -> None:
        """End the stream, if it is this process's own."""
        if self._writer is not None and self._writer_pid == os.getpid():
            self._writer.close()

    def _recorder(self, env: Any) -> Recorder:
        recorder = Recorder(self._record, self._run_dir, self._emitter, self.say)
        with contextlib.suppress(Exception):  # not every environment has metadata
            fps = float(env.metadata["render_fps"])
            recorder.fps = fps if 0 < fps < math.inf else recorder.fps
        return recorder


def _mean(values: list[float]) -> float:
    """Return the mean of the values that are not NaN."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
