"""steps.jsonl of an experiment: every step of its episodes, gathered from its shards, and where each episode begins."""

from __future__ import annotations

import os
from collections import defaultdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

__all__ = ["Steps"]

STEPS = "steps.jsonl"
EPISODES = "episodes.jsonl"

Key = tuple[str, int]


class Steps:
    """The steps of an experiment. The file only grows; its index has offset and size of each episode's lines."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / STEPS
        self.index_file = folder / "steps.index.json"

    def find(self, lineup: str, episode: int) -> int | None:
        """Where the steps of an episode begin; None if there are none."""
        found = self._read_index().get(lineup, {}).get(str(episode))
        return found[0] if found else None

    def gather(self, attempts: Iterable[Path], hashes: Mapping[Key, str | None]) -> None:
        """Add the steps of episodes that have none yet, from the folders of shards.

        `hashes` has the action hash of each episode that counts: an episode may have been played more often.
        """
        index = self._read_index()
        known = {(lineup, int(number)) for lineup, numbers in index.items() for number in numbers}
        end = max((offset + size for numbers in index.values() for offset, size in numbers.values()), default=0)
        with self.path.open("ab") as out:
            out.truncate(end)  # what a crash left behind
            for attempt in attempts:
                played = {key: digest for key, digest in _hashes(attempt / EPISODES) if hashes.get(key) == digest}
                for key, lines in _episodes(attempt / STEPS):
                    if key in known or key not in played:
                        continue
                    out.writelines(lines)
                    size = sum(map(len, lines))
                    index[key[0]][str(key[1])] = (end, size)
                    known.add(key)
                    end += size
            out.flush()
            os.fsync(out.fileno())
        fresh = self.index_file.with_suffix(".new")
        with fresh.open("wb") as out:
            out.write(orjson.dumps(index))
            out.flush()
            os.fsync(out.fileno())  # else a power loss may leave it empty
        fresh.replace(self.index_file)

    def _read_index(self) -> defaultdict[str, dict[str, tuple[int, int]]]:
        try:
            return defaultdict(dict, orjson.loads(self.index_file.read_bytes()))
        except FileNotFoundError:
            return defaultdict(dict)


def _hashes(path: Path) -> Iterator[tuple[Key, str | None]]:
    for _, record in _lines(path):
        yield (record["lineup"], record["episode"]), record.get("action_hash")


def _episodes(path: Path) -> Iterator[tuple[Key, list[bytes]]]:
    """Yield the lines of each episode; the arena writes those of an episode at once."""
    for key, found in groupby(_lines(path), key=lambda each: (each[1]["lineup"], each[1]["episode"])):
        yield key, [line for line, _ in found]


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield the whole lines of a file, each with its fields; nothing if there is none."""
    if not path.is_file():
        return
    with path.open("rb") as file:
        for line in file:
            try:
                fields = orjson.loads(line)
                fields["lineup"], fields["episode"]
            except (orjson.JSONDecodeError, KeyError, TypeError):
                continue  # cut off
            yield line, fields
