"""A video of one episode, as an animated PNG."""

from pathlib import Path
from typing import Any

import numpy as np

from mosaic_worker.emitter import Emitter
from mosaic_worker.frames.apng import encode
from mosaic_worker.frames.pixels import shrink
from mosaic_worker.frames.recorder import FOLDER
from mosaic_worker.frames.settings import RecordSettings

__all__ = ["Video"]

_FPS = 30.0


class Video:
    """The pictures of an episode; a long one is thinned out."""

    def __init__(self) -> None:
        """Begin without pictures."""
        self._limits = RecordSettings()
        self._frames: list[Any] = []
        self._stride = 1
        self._moment = -1

    def add(self, game: Any) -> None:
        """Add what an environment shows now."""
        self._moment += 1
        if self._moment % self._stride:
            return
        frame = game.render()
        if not isinstance(frame, np.ndarray):
            return
        if len(self._frames) >= self._limits.max_frames:
            del self._frames[1::2]
            self._stride *= 2
        self._frames.append(np.array(shrink(frame, self._limits.max_dim)))

    def write(self, run_dir: Path, name: str, emitter: Emitter, info: dict[str, Any]) -> None:
        """Write the file and report it; an environment that showed nothing has none."""
        if not self._frames:
            return
        path = run_dir / FOLDER / f"{name}.png"
        path.parent.mkdir(exist_ok=True)
        draft = path.with_name(f".{path.name}")
        draft.write_bytes(encode(self._frames, self._stride / _FPS))
        draft.replace(path)
        emitter.artifact("video", f"{FOLDER}/{path.name}", info=info)
