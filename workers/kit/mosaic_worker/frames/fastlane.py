"""FastLane in a worker: wraps environments so that people can watch them while they train.

A `FastLane` is one stream of frames of one run. `lane.wrap(env, index)` returns the environment in a wrapper that
counts steps and, when a frame is due, renders one and publishes it; or the environment itself when nobody wants
frames. Nothing that goes wrong with frames ever reaches the training: it is said once, and there are none.
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
"""How much of a finished episode goes into the rolling return, and of a frame into what frames cost."""
_SHARE = 20
"""Frames that take long to draw get one part in so many of the time, all environments of a grid together."""
_ALONE_S = 5.0
"""How long a tile waits for the environment that publishes the grid: it may be wrapped last."""
_NO_NUMBER = (TypeError, ValueError, ArithmeticError, RuntimeError)
"""What a reward raises that is no number, as with several agents, or too large, or an array of another shape."""


class Watch:
    """Follows one environment: counts what happens, and looks at it when a frame is due."""

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
        """Look every `interval` seconds, which may be infinite."""
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
        """A copy of an environment, as planners make them, is not watched."""
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
        """The environment took a step. This is the hot path: mostly a few additions and a look at the clock."""
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
        """Go on without frames of this environment, and say once why."""
        if not self._gave_up:
            self._gave_up = True
            self.close()
            self._lane.say(f"no more frames of environment {self.index}: {type(error).__name__}: {error}")

    def close(self) -> None:
        """The environment is about to be closed, or not to be followed any more."""
        self.mute()
        self._recorder, self._recording = None, False
        self._lane.leave(self)

    def mute(self) -> None:
        """Show no more frames."""
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
        """Take a frame, for those who watch now and for the video."""
        if os.getpid() != self.pid:  # a copy in a forked process: the stream and the files are its parent's
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
            # The first one brings the renderer up, and says nothing of how long the next ones take.
            self._due = done + (self._interval if is_first else max(self._interval, self._rest(done - now)))
        if recorder is not None and is_wanted and frame is not None:
            recorder.add(frame)

    def _rest(self, took: float) -> float:
        """How long to show nothing, since the others of a grid have to be drawn in the meantime, too.

        Smoothed, so that one frame that got stuck does not cost many others.
        """
        self._cost = took if self._cost is None else self._cost + _SMOOTHING * (took - self._cost)
        return (_SHARE * len(self._lane.partners()) - 1) * self._cost

    def _wait_for_the_grid(self, now: float) -> None:
        """Render nothing: the environment that publishes the grid is not here, as yet or because it is elsewhere."""
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
        """Find the rate of steps since the last frame."""
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
        if not self._lane.is_coordinator(self.index):  # that one still has the frames of others to publish
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
        """Publish to a ring in `folder`, nowhere if it is None; record to `run_dir`. What goes wrong is logged."""
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
        """In another process, as one of several environments may be, it is another; it talks to the run's log there."""
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
        """Whether any environment will be asked to render, so that it has to be made with render_mode="rgb_array"."""
        return self._publishes or self._record.is_on

    def wrap(self, env: Any, index: int = 0) -> Any:
        """Return environment number `index` of the run in a wrapper, or as it is if it has no frames to give.

        Gymnasium, old gym and PettingZoo (AEC and Parallel) are recognised. If two have the same index, the last one
        that was wrapped is shown.
        """
        watch = self.watch(env, index)
        return env if watch is None else wrapper_of(env, watch)

    def watch(self, env: Any, index: int = 0) -> Watch | None:
        """Return what has to be told of an environment's steps so that it is shown; None if it has none to give.

        For who has a wrapper already: tell it `began`, `stepped` and `close`.
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

    # What the watches need.

    def is_coordinator(self, index: int) -> bool:
        """Whether an environment publishes the tiling of all."""
        return self._settings.mode == "grid" and index == 0

    def can_show(self, watch: Watch) -> bool:
        """Whether a frame of this environment can be published: a tile needs the publisher of the grid beside it."""
        if self._settings.mode != "grid":
            return True
        publisher = self._watches.get(0)
        return publisher is not None and publisher.pid == watch.pid

    def show(self, watch: Watch, frame: Frame | None) -> None:
        """Publish a frame, or keep it for the tiling."""
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
        """Forget an environment; the stream ends with the one that publishes it."""
        if self._watches.get(watch.index) is not watch:
            return
        del self._watches[watch.index]
        self._tiles.pop(watch.index, None)
        if watch.index == self._publisher:
            self._close_writer()

    def say(self, message: str) -> None:
        """Tell people, in the run's journal or else in its log."""
        if self._emitter is not None:
            self._emitter.log("warning", message)
        else:
            note(message)

    # How it publishes.

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
        """Those who share the stream; one that is only recorded does not."""
        return [watch for watch in self._watches.values() if self._takes_part(watch.index)]

    def _tiling(self, watch: Watch, frame: Frame | None) -> Frame | None:
        """Keep the frame of an environment; for the one that coordinates, return the tiling of all."""
        count = max(each.index for each in self.partners()) + 1
        if frame is not None:
            side = max(1, self._settings.max_dim // columns_of(count))
            self._tiles[watch.index] = np.array(shrink(frame, side))
        if not self.is_coordinator(watch.index) or not self._tiles:
            return None
        return tile([self._tiles.get(index) for index in range(count)])

    def _figures(self, watch: Watch) -> dict[str, Any]:
        """The figures of a frame; of a tiling: steps, episodes and rate of all, rewards and returns on average."""
        watches = [watch] if self._settings.mode == "single" else self.partners()
        return {
            "step": sum(each.step for each in watches),
            "episode": sum(each.episode for each in watches),
            "last_reward": _mean([_number(each.last_reward) for each in watches]),
            "rolling_return": _mean([each.rolling_return for each in watches]),
            "step_rate_hz": _mean([each.rate_hz for each in watches]) * len(watches),
        }

    def _own_writer(self) -> FrameWriter:
        """Return this process's writer: one that came with a fork is its parent's, and is left alone."""
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
    """Make one number of a reward, which may be an array of several."""
    try:
        return float(value.sum() if isinstance(value, np.ndarray) else value)
    except _NO_NUMBER:
        return math.nan


def _mean(values: list[float]) -> float:
    """The mean of those that are known."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan
