"""The manifest, `analytics.json`: where a run left its TensorBoard files, checkpoints, logs and videos."""

import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from mosaic_worker.emitter import Emitter
from mosaic_worker.encoding import to_plain

__all__ = ["FILE_NAME", "Manifest"]

FILE_NAME = "analytics.json"
KINDS = ("tensorboard", "checkpoints", "logs", "videos")


class Manifest:
    """Collects what a run produced and writes it to `analytics.json` in the run's folder.

    Paths are relative to that folder, so that it can be moved; paths outside stay absolute.
    """

    def __init__(self, run_dir: Path, run_id: str, worker: str, *, clock: Callable[[], float] = time.time) -> None:
        """Start an empty manifest."""
        self.run_dir = run_dir.absolute()
        self._document: dict[str, Any] = {"run_id": run_id, "worker": worker, "wandb": None, **{k: [] for k in KINDS}}
        self._clock = clock

    def add(self, kind: str, paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> None:
        """Add a path or several; kind is tensorboard, checkpoints, logs or videos. Duplicates are dropped."""
        if kind not in KINDS:
            raise ValueError(f"kind {kind!r} is not one of {', '.join(KINDS)}")
        known = self._document[kind]
        for path in [paths] if isinstance(paths, str | os.PathLike) else paths:
            relative = self._relative(path)
            if relative not in known:
                known.append(relative)

    def set_wandb(self, **fields: Any) -> None:
        """Record where Weights & Biases has the run: project, entity, run id, url, dir."""
        if fields.get("dir") is not None:
            fields["dir"] = self._relative(fields["dir"])
        self._document["wandb"] = fields

    def write(self, emitter: Emitter | None = None) -> Path:
        """Write the file atomically and report it as an artifact."""
        path = self.run_dir / FILE_NAME
        document = to_plain({**self._document, "created_at": self._clock()})
        draft = path.with_name(f".{FILE_NAME}.{os.getpid()}")
        with draft.open("w", encoding="utf-8") as file:
            json.dump(document, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        if emitter is not None:
            emitter.artifact("manifest", FILE_NAME)
        return path

    def _relative(self, path: str | os.PathLike[str]) -> str:
        absolute = Path(os.path.normpath(self.run_dir / path))
        return str(absolute.relative_to(self.run_dir) if absolute.is_relative_to(self.run_dir) else absolute)
