"""The folder of an experiment: its plan, records, steps and videos, and the operator service's state.json."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from mosaic_services.experiments.errors import FolderError
from mosaic_services.experiments.records import Records, sort_key
from mosaic_services.experiments.steps import Steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["ExperimentFolder"]

_FOLDER_MODE = 0o700
_VIDEOS = "videos"


class ExperimentFolder:
    """Reads and writes the files of one experiment. Records are appended as they come and sorted at the end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.plan_file = path / "experiment.json"
        self.state_file = path / "state.json"
        self.episodes = path / "episodes.jsonl"

    @property
    def name(self) -> str:
        """The experiment's name."""
        return self.path.name

    def read_plan(self) -> dict[str, Any] | None:
        """The resolved experiment; None if there is none yet."""
        return _read(self.plan_file)

    def read_state(self) -> dict[str, Any] | None:
        """What the operator service noted last."""
        return _read(self.state_file)

    def write_plan(self, plan: dict[str, Any]) -> None:
        """Replace experiment.json. The order of keys stays: the first agent of a lineup is the one that moves first."""
        self._replace(self.plan_file, orjson.dumps(plan, option=orjson.OPT_INDENT_2) + b"\n")

    def write_state(self, state: dict[str, Any]) -> None:
        """Replace state.json."""
        self._replace(self.state_file, orjson.dumps(state))

    def read_records(self, *, keep: bool) -> Records:
        """Read all records. A last line that a crash cut short is removed. `keep` is for a stopping rule."""
        records = Records(kept=[] if keep else None)
        if not self.episodes.exists():
            return records
        with self.episodes.open("rb+") as file:
            whole = 0
            for line in file:
                if not line.endswith(b"\n"):
                    file.truncate(whole)
                    break
                whole += len(line)
                try:
                    record = orjson.loads(line)
                    records.add(record, line)
                except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
                    raise FolderError(f"{self.episodes}: a line is no record ({error}): {line[:80]!r}") from error
        return records

    def append(self, lines: Iterable[bytes]) -> None:
        """Add records; once this returns, they survive a power failure."""
        self.path.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        with self.episodes.open("ab") as file:
            file.writelines(lines)
            file.flush()
            os.fsync(file.fileno())

    def sort(self) -> None:
        """Put the records in the order of lineup and episode; without a record, make an empty file."""
        lines = self.episodes.read_bytes().splitlines(keepends=True) if self.episodes.exists() else []
        ordered = sorted(lines, key=sort_key)
        if ordered != lines or not lines:
            self._replace(self.episodes, b"".join(ordered))

    def keep_videos(self, videos: Mapping[str, Mapping[int, str]]) -> dict[str, dict[int, str]]:
        """Copy videos from the folders of shards, which may be deleted; return where they are now."""
        kept: dict[str, dict[int, str]] = {lineup: dict(paths) for lineup, paths in videos.items()}
        for lineup, paths in kept.items():
            # Two lineups may differ only in what no file can be called.
            slug = f"{re.sub(r'[^A-Za-z0-9]+', '-', lineup)[:40]}-{hashlib.sha256(lineup.encode()).hexdigest()[:8]}"
            for episode, path in paths.items():
                source = Path(path)
                if source.is_absolute() and source.is_file():
                    (self.path / _VIDEOS).mkdir(exist_ok=True)
                    paths[episode] = f"{_VIDEOS}/{slug}-{episode}{source.suffix}"
                    shutil.copyfile(source, self.path / paths[episode])
        return kept

    def keep_steps(self, attempts: Iterable[Path]) -> None:
        """Gather the steps of all episodes from the folders of shards."""
        with self.episodes.open("rb") as file:
            records = map(orjson.loads, file)
            hashes = {(record["lineup"], record["episode"]): record.get("action_hash") for record in records}
        Steps(self.path).gather(attempts, hashes)

    def clear(self) -> None:
        """Remove everything."""
        shutil.rmtree(self.path, ignore_errors=True)

    def _replace(self, path: Path, content: bytes) -> None:
        self.path.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        with fresh.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, orjson.JSONDecodeError) as error:
        raise FolderError(f"{path}: {error}") from error
    if not isinstance(found, dict):
        raise FolderError(f"{path}: no map of fields")
    return found
