"""Keeps episodes as videos: every n-th, the best so far, the worst so far.

The frames of an episode are held in memory until it ends. At `max_frames`, every second one is dropped, and from then
on only every second step is rendered.
"""

import math
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from mosaic_worker.emitter import Emitter
from mosaic_worker.frames.apng import encode
from mosaic_worker.frames.pixels import Frame, shrink
from mosaic_worker.frames.settings import RecordSettings

__all__ = ["FOLDER", "Recorder"]

FOLDER = "videos"


class Recorder:
    """Collects the frames of one environment's episodes and writes the wanted ones as videos."""

    def __init__(
        self, settings: RecordSettings, run_dir: Path, emitter: Emitter | None, say: Callable[[str], None]
    ) -> None:
        """Write to `videos` in the run's folder, and report failures with `say`."""
        self.recording = False
        self.fps = 30.0
        self._settings = settings
        self._run_dir = run_dir
        self._emitter = emitter
        self._say = say
        self._episode = 0
        self._seed: int | None = None
        self._frames: list[Frame] = []
        self._stride = 1
        self._moment = -1
        self._best = -math.inf
        self._worst = math.inf

    def begin(self, episode: int, seed: int | None) -> None:
        """Begin an episode, and drop the frames of an unfinished one."""
        settings = self._settings
        self._episode, self._seed = episode, seed
        self.recording = settings.best or settings.worst or self._is_nth()
        self._frames, self._stride, self._moment = [], 1, -1

    def wants(self, *, over: bool) -> bool:
        """Count a step of the episode; return whether its frame is to be added."""
        self._moment += 1
        return over or self._moment % self._stride == 0

    def add(self, frame: Frame) -> None:
        """Keep a copy of a frame, shrunk to the maximum size."""
        if len(self._frames) >= self._settings.max_frames:
            del self._frames[1::2]
            self._stride *= 2
        self._frames.append(np.array(shrink(frame, self._settings.max_dim)))

    def end(self, episode_return: float, step: int) -> None:
        """End the episode: write it if it is wanted, and report it."""
        wanted = {"every": f"episode-{self._episode}.png"} if self._is_nth() else {}
        if self._settings.best and episode_return > self._best:
            self._best = episode_return
            wanted["best"] = "best.png"
        if self._settings.worst and episode_return < self._worst:
            self._worst = episode_return
            wanted["worst"] = "worst.png"
        frames, self._frames = self._frames, []
        self.recording = False
        if wanted and frames:
            try:
                self._write(wanted, frames, episode_return, step)
            except OSError as error:
                self._say(f"no more videos: {self._run_dir / FOLDER}: {error.strerror}")
                self._settings = RecordSettings()

    def _is_nth(self) -> bool:
        return self._settings.every is not None and self._episode % self._settings.every == 0

    def _write(self, wanted: dict[str, str], frames: list[Frame], episode_return: float, step: int) -> None:
        video = encode(frames, self._stride / self.fps)
        (self._run_dir / FOLDER).mkdir(exist_ok=True)
        for why, name in wanted.items():
            path = self._run_dir / FOLDER / name
            draft = path.with_name(f".{name}.{os.getpid()}")
            draft.write_bytes(video)
            draft.replace(path)  # atomic: a reader sees the old or the new file
            if self._emitter is not None:
                info = {"episode": self._episode, "seed": self._seed, "return": episode_return, "why": why}
                # With several environments, the run has taken more steps than this one.
                at = max(step, self._emitter.last_step or 0)
                self._emitter.artifact("video", f"{FOLDER}/{name}", step=at, info=info)
