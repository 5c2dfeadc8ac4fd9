"""A watch follows one environment: it counts steps and episodes, and renders when a frame is due."""

import math
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from mosaic_worker.errors import FrameError, RunCancelled
from mosaic_worker.frames.pixels import Frame, as_rgb
from mosaic_worker.frames.recorder import Recorder
from mosaic_worker.frames.wrappers import Blind, render

if TYPE_CHECKING:
    from mosaic_worker.frames.fastlane import FastLane

__all__ = ["Watch", "as_number"]

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
        """Render every `interval` seconds, which may be infinite; 0 renders every step, whatever it costs."""
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
        result = as_number(self._episode_return)
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
            is_plain = self._shown is None or not self._interval
            self._measure(now)
            self._lane.show(self, frame)
            done = self._clock()
            # The first frame starts the renderer, so its cost says nothing about later ones.
            self._due = done + (self._interval if is_plain else max(self._interval, self._rest(done - now)))
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


def as_number(value: Any) -> float:
    """Return a reward as a float; an array is summed."""
    try:
        return float(value.sum() if isinstance(value, np.ndarray) else value)
    except _NO_NUMBER:
        return math.nan
