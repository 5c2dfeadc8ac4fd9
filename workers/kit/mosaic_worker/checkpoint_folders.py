"""Checkpoints that are folders: `step-N` with the library's files and one JSON file that says what they are."""

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from mosaic_worker.encoding import to_plain
from mosaic_worker.errors import ConfigError

__all__ = ["CheckpointFolders"]

About = TypeVar("About")
_STEP = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class CheckpointFolders(Generic[About]):
    """Saves, finds and reads the checkpoint folders of one worker. `about` is a dataclass of plain JSON values."""

    worker: str
    about: type[About]
    """Its fields `format` and `version` have defaults; a checkpoint with other values is refused."""
    about_file: str
    """The JSON file. A folder without it is no checkpoint."""

    def save(self, about: About, step: int, write: Callable[[Path], None], folder: Path) -> Path:
        """Write `step-N`; `write` puts the library's files there. There is never half a checkpoint under that name."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"step-{step}"
        draft = folder / f".step-{step}.{os.getpid()}"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
        write(draft)
        document = to_plain(asdict(about))  # type: ignore[call-overload]
        (draft / self.about_file).write_text(json.dumps(document, indent=1), encoding="utf-8")
        for file in draft.rglob("*"):
            _sync(file)
        shutil.rmtree(path, ignore_errors=True)  # of an earlier attempt in the same folder
        draft.rename(path)
        _sync(folder)
        return path

    def keep_newest(self, folder: Path, count: int) -> None:
        """Remove all but the newest checkpoints."""
        for path in self._steps(folder)[:-count]:
            shutil.rmtree(path, ignore_errors=True)

    def find(self, given: str | os.PathLike[str], field_name: str) -> Path:
        """Find a checkpoint: the folder itself, or the newest one in a run's folder. ConfigError blames the field."""
        path = Path(given)
        if not path.is_dir():
            why = "it is a file, not a folder such as checkpoints/step-1000" if path.exists() else "no such folder"
            raise ConfigError(f"{field_name}: {str(path)!r} is not a checkpoint of the {self.worker} worker: {why}")
        if (path / self.about_file).is_file():
            return path
        found = self._steps(path / "checkpoints") or self._steps(path)
        if not found:
            raise ConfigError(
                f"{field_name}: {str(path)!r} has no checkpoint of the {self.worker} worker (no {self.about_file})"
            )
        return found[-1]

    def read(self, path: Path, field_name: str) -> About:
        """Read what a checkpoint says of itself."""
        known = {"format": _default(self.about, "format"), "version": _default(self.about, "version")}
        try:
            content = json.loads((path / self.about_file).read_text(encoding="utf-8"))
            if {name: content.get(name) for name in known} != known:
                kind = f"{content.get('format')!r} version {content.get('version')!r}"
                reads = f"{known['format']} {known['version']}"
                raise ConfigError(f"{field_name}: {str(path)!r} has format {kind}; this worker reads {reads}")
            return self.about(**content)
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise ConfigError(f"{field_name}: {str(path)!r} is damaged: {type(error).__name__}: {error}") from error

    def _steps(self, folder: Path) -> list[Path]:
        """The checkpoints in a folder, the newest last."""
        found = {int(match[1]): path for path in folder.glob("step-*") if (match := _STEP.fullmatch(path.name))}
        return [found[step] for step in sorted(found) if (found[step] / self.about_file).is_file()]


def _default(about: type[Any], name: str) -> Any:
    return about.__dataclass_fields__[name].default


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
