"""The folder of an experiment: experiment.json, episodes.jsonl, and state.json, which the operator service keeps."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any

import orjson

from mosaic_services.experiments.errors import FolderError
from mosaic_services.experiments.records import Records, sort_key

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["ExperimentFolder"]

_FOLDER_MODE = 0o700


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
        """Replace experiment.json."""
        self._replace(self.plan_file, orjson.dumps(plan, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n")

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
