"""The input of a report: experiment.json and episodes.jsonl of a folder, and what is known of trainings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from mosaic_services.report.errors import ReportError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["Training", "lineups_of", "read_experiment", "read_records"]

_REQUIRED = {"lineup", "episode", "returns"}


@dataclass(frozen=True)
class Training:
    """The learning curve of one training run; runs with the same label are folded into one curve."""

    label: str
    run: str
    steps: Sequence[float | None]
    values: Sequence[float | None]
    seconds: Sequence[float | None]
    """Seconds since the run began, parallel to steps and values."""


def read_experiment(folder: Path) -> dict[str, Any]:
    """Read experiment.json."""
    path = folder / "experiment.json"
    found = _parse(_read(path), str(path))
    if not isinstance(found.get("lineups"), list) or not found["lineups"]:
        raise ReportError(f"{path}: it has no lineups")
    lineups_of(found)
    return found


def read_records(folder: Path) -> list[dict[str, Any]]:
    """Read episodes.jsonl. A last line that is cut short, as after a crash, is left out."""
    path = folder / "episodes.jsonl"
    lines = _read(path).split(b"\n")
    records = []
    for number, line in enumerate(lines, 1):
        if line:
            try:
                records.append(_record(orjson.loads(line)))
            except (orjson.JSONDecodeError, ValueError) as error:
                if number == len(lines):
                    break
                raise ReportError(f"{path}, line {number}: {error}") from error
    return records


def lineups_of(experiment: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Which operator plays which agent, by name of the lineup."""
    try:
        return {each["name"]: dict(each["agents"]) for each in experiment["lineups"]}
    except (KeyError, TypeError, ValueError) as error:
        raise ReportError(f"experiment.json: lineups need a name and agents ({error!r})") from error


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ReportError(f"{path}: {error.strerror or error}") from error


def _parse(content: bytes, where: str) -> dict[str, Any]:
    try:
        found = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        raise ReportError(f"{where}: {error}") from error
    if not isinstance(found, dict):
        raise ReportError(f"{where}: it is no JSON object")
    return found


def _record(record: Any) -> dict[str, Any]:
    if not isinstance(record, dict) or not record.keys() >= _REQUIRED:
        raise ValueError(f"no record of an episode: it needs {', '.join(sorted(_REQUIRED))}")
    if type(record["episode"]) is not int or not isinstance(record["returns"], Mapping):
        raise ValueError("no record of an episode: `episode` is a number, `returns` an object")
    return record
