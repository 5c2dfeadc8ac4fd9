"""The records of episodes: episodes.jsonl and steps.jsonl in the run's folder, and what an earlier attempt left."""

import json
import os
from pathlib import Path
from typing import Any

from mosaic_worker.encoding import encode

__all__ = ["EPISODES", "STEPS", "Records", "read_records"]

EPISODES = "episodes.jsonl"
STEPS = "steps.jsonl"


class Records:
    """Appends records, each in one write: a file that is cut off has whole lines but for the last."""

    def __init__(self, run_dir: Path) -> None:
        """Write into a folder."""
        self.path = run_dir / EPISODES
        self._steps_path = run_dir / STEPS
        self._episodes = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._steps: int | None = None
        self.done: set[tuple[str, int]] = set()

    def take_over(self, path: Path) -> int:
        """Copy the records of an earlier attempt, and their steps; return how many steps were played for them."""
        records = read_records(path)
        for record in records:
            self._append(record)
        steps = path.with_name(STEPS)
        if steps.is_file():
            for line in steps.read_bytes().splitlines():
                if (step := _parse(line)) is not None and (step.get("lineup"), step.get("episode")) in self.done:
                    self._write_steps(line + b"\n")
        return max((record.get("timing", {}).get("step") or 0 for record in records), default=0)

    def add(self, record: dict[str, Any], steps: list[dict[str, Any]] | None) -> None:
        """Keep a record; its steps first, so that a record is never without them."""
        if steps:
            whose = {"lineup": record["lineup"], "episode": record["episode"]}
            self._write_steps(b"".join(encode({**whose, **step}) + b"\n" for step in steps))
        self._append(record)

    def close(self) -> None:
        """Close the files."""
        os.close(self._episodes)
        if self._steps is not None:
            os.close(self._steps)

    def _append(self, record: dict[str, Any]) -> None:
        os.write(self._episodes, encode(record) + b"\n")
        self.done.add((record["lineup"], record["episode"]))

    def _write_steps(self, lines: bytes) -> None:
        if self._steps is None:
            self._steps = os.open(self._steps_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.write(self._steps, lines)


def read_records(path: Path) -> list[dict[str, Any]]:
    """Read the whole lines of a file of records; of two records of one episode the first counts."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for line in path.read_bytes().splitlines():
        record = _parse(line)
        if record is not None and "lineup" in record and "episode" in record:
            found.setdefault((record["lineup"], record["episode"]), record)
    return list(found.values())


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
