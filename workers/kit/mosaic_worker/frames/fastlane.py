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
from mosaic_worker.errors import FrameError, RunCancelled
from mosaic_worker.frames.pixels import Frame, as_rgb, columns_of, shrink, tile
from mosaic_worker.frames.recorder import Recorder
from mosaic_worker.frames.ring import FrameWriter, require_unused
from mosaic_worker.frames.settings import FastLaneSettings, RecordSettings
from mosaic_worker.frames.wrappers import Blind, FastLaneTelemetryWrapper, render, wrapper_of
from mosaic_worker.stdout import note

__all__ = ["FOLDER", "FastLane", "FastLaneSettings", "FastLaneTelemetryWrapper", "RecordSettings"]

FOLDER = "MOSAIC_FASTLANE_DIR"
_SMOOTHING = 0.1
"""Weight of the newest value in the rolling return and in the smoothed cost of a frame."""
_SHARE = 20
"""Frames take at most 1/20 of the time, all environments of a grid together."""
_ALONE_S = 5.0
"""Seconds that a tile waits for the environment that publishes the grid, which may be wrapped last."""
_NO_NUMBER = (TypeError, ValueError, ArithmeticError, RuntimeError)
"""Errors of a reward that is not a number, is too large, or is an array of another shape."""


class Watch:
    """Follows one environment: counts steps and episodes, and renders when a frame is due."""

    def __init__(
        self,
        lane: "FastLane",
        env: Any,
        index: int,
        *,
        interval: float,
        recorder: Recorder | None,
        clock: Callable[[], float],
    ) -> None:
        """Render every `interval` seconds, which may be infinite."""
        self.index = index
        self.step = 0
        self.episode = 0
        self.last_reward: Any = math.nan
        self.rolling_return = math.nan
        self.rate_hz = math.nan
        self._episode_return: Any = 0.0
        self._lane = lane
        self._env = env
        self._clock = clock
        self._interval = interval
        self._due = clock() if interval < math.inf else math.inf
        self._recorder = recorder
        self._recording = False
        self._can_render = True
        self._gave_up = False
        self._shown: tuple[float, int] | None = None
        self._cost: float | None = None
        self._alone_since: float | None = None
        self.pid = os.getpid()

    def __reduce__(self) -> Any:
        """Replace the watch in a copy of the environment, as planners make: copies are not watched."""
        return Blind, ()

    def began(self, seed: int | None) -> None:
        """The environment was reset."""
        self._episode_return = 0.0
        try:
            if self._recorder is not None:
                self._recorder.begin(self.episode, seed)
                self._recording = self._recorder.recording
            if self._recording or self._clock() >= self._due:
                self._look(over=False)
        except RunCancelled:
            raise
        except Exception as error:
            self.give_up(error)

    def stepped(self, reward: Any, over: Any) -> None:
        """The environment took a step. This is the hot path: a few additions and a look at the clock."""
        self.step += 1
        self.last_reward = reward
        try:
            try:
                self._episode_return = self._episode_return + reward
            except _NO_NUMBER:
                self._episode_return = math.nan
            if self._recording or self._clock() >= self._due:
                self._look(over=bool(over))
            if over:
                self._end()
        except RunCancelled:
            raise
        except Exception as error:
            self.give_up(error)

    def give_up(self, error: Exception) -> None:
        """Stop rendering this environment, and log why, once."""
        if not self._gave_up:
            self._gave_up = True
            self.close()
            self._lane.say(f"no more frames of environment {self.index}: {type(error).__name__}: {error}")

    def close(self) -> None:
        """Stop following: the environment is about to be closed, or failed."""
        self.mute()
        self._recorder, self._recording = None, False
        self._lane.leave(self)

    def mute(self) -> None:
        """Publish no more frames."""
        self._interval = self._due = math.inf

    def _end(self) -> None:
        result = _number(self._episode_return)
        before = result if math.isnan(self.rolling_return) else self.rolling_return
        self.rolling_return = before + _SMOOTHING * (result - before)
        if self._recording and self._recorder is not None:
            self._recording = False
            self._recorder.end(result, self.step)
        self.episode += 1
        self._episode_return = 0.0

    def _look(self, *, over: bool) -> None:
        """Render a frame for the live stream, the video, or both."""
        if os.getpid() != self.pid:  # a copy in a forked process: the stream and the files belong to the parent
            self._lane.say(
                f"no frames of environment {self.index} in process {os.getpid()}: it was wrapped in {self.pid}; "
                "wrap it in the process that steps it"
            )
            self.close()
            return
        now = self._clock()
        is_due = now >= self._due
        if is_due and not self._lane.can_show(self):
            self._wait_for_the_grid(now)
            is_due = False
        elif is_due:
            self._alone_since = None
        recorder = self._recorder if self._recording else None
        is_wanted = recorder is not None and recorder.wants(over=over)
        if not is_due and not is_wanted:
            return
        frame = self._render() if self._can_render else None
        if is_due:
            is_first = self._shown is None
            self._measure(now)
            self._lane.show(self, frame)
            done = self._clock()
            # The first frame starts the renderer, so its cost says nothing about later ones.
            self._due = done + (self._interval if is_first else max(self._interval, self._rest(done - now)))
        if recorder is not None and is_wanted and frame is not None:
            recorder.add(frame)

    def _rest(self, took: float) -> float:
        """Return the seconds until the next frame that keep rendering, of all environments, within its share of time.

        The cost is smoothed, so that one slow frame does not delay many others.
        """
        self._cost = took if self._cost is None else self._cost + _SMOOTHING * (took - self._cost)
        return (_SHARE * len(self._lane.partners()) - 1) * self._cost

    def _wait_for_the_grid(self, now: float) -> None:
        """Skip a frame, since the environment that publishes the grid is not in this process, or not yet."""
        self._due = now + self._interval
        if self._alone_since is None:
            self._alone_since = now
        elif now - self._alone_since >= _ALONE_S:
            self._alone_since = math.inf
            self._lane.say(
                f"environment {self.index} is not in the grid: environment 0, which publishes it, is not in this "
                f"process ({os.getpid()}). Step them in one process, as SyncVectorEnv does, or use the mode single"
            )

    def _measure(self, now: float) -> None:
        """Measure the rate of steps since the last frame."""
        if self._shown is not None and now > self._shown[0]:
            self.rate_hz = (self.step - self._shown[1]) / (now - self._shown[0])
        self._shown = (now, self.step)

    def _render(self) -> Frame | None:
        try:
            return as_rgb(render(self._env))
        except RunCancelled:
            raise
        except Exception as error:
            reason = str(error) if isinstance(error, FrameError) else f"render raised {type(error).__name__}: {error}"
            self._lane.say(f"no frames of environment {self.index}: {reason}")
        self._can_render = self._recording = False
        self._recorder = None
        if not self._lane.is_coordinator(self.index):  # which still has to publish the frames of others
            self.mute()
        return None


class FastLane:
    """The frames of one run: wraps its environments, publishes what they show, and records episodes."""

    def __init__(
        self,
        settings: FastLaneSettings,
        folder: str | os.PathLike[str] | None,
        *,
        record: RecordSettings | None = None,
        run_dir: Path | None = None,
        emitter: Emitter | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Publish to a ring in `folder`, if given; record to `run_dir`. Failures are logged."""
        self._settings = settings
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
        return partial(FastLane, self._settings, self._folder, record=self._record, run_dir=self._run_dir), ()

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
            interval=self._settings.interval_ms / 1000 if is_shown else math.inf,
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
            "last_reward": _mean([_number(each.last_reward) for each in watches]),
            "rolling_return": _mean([each.rolling_return for each in watches]),
            "step_rate_hz": _mean([each.rate_hz for each in watches]) * len(watches),
        }

    def _own_writer(self) -> FrameWriter:
        """Return this process's writer; one that was inherited by a fork belongs to the parent."""
        if self._writer is None or self._writer_pid != os.getpid():
            if self._folder is None:
                raise FrameError("there is no folder to publish to")
            writer = FrameWriter(self._folder)
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


def _number(value: Any) -> float:
    """Return a reward as a float; an array is summed."""
    try:
        return float(value.sum() if isinstance(value, np.ndarray) else value)
    except _NO_NUMBER:
        return math.nan


def _mean(values: list[float]) -> float:
    """Return the mean of the values that are not NaN."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
