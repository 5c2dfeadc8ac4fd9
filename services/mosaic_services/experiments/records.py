"""Episode records: read from the journals of shards, kept once each, and told apart from what is no record."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

__all__ = ["Records", "read_event", "record_line", "sort_key"]

# A record is a function of the experiment alone. Whatever else an event has (times, hosts, paths) is left out.
_FIELDS = (
    "lineup",
    "episode",
    "env_seed",
    "seeds",
    "returns",
    "length",
    "ended",
    "winners",
    "failures",
    "action_hash",
    "numerics",
)
_LOOKED_AT = ("lineup", "episode", "env_seed", "returns", "winners")
_CONFIDENCE = 0.95
_REQUIRED = ("lineup", "episode", "returns", "ended")


def read_event(line: str | bytes) -> dict[str, Any] | None:
    """Return the record in an `episode` event of a shard; None if it has none."""
    try:
        event = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(event, dict):
        return None
    record = {name: event.get(name) for name in _FIELDS}
    if any(record[name] is None for name in _REQUIRED) or not isinstance(record["returns"], dict):
        return None
    record["failures"] = record["failures"] or []
    if isinstance(event.get("reports"), dict):  # only of operators that tell something
        record["reports"] = event["reports"]
    return record if isinstance(record["lineup"], str) and type(record["episode"]) is int else None


def record_line(record: dict[str, Any]) -> bytes:
    """Write a record as a line: equal records give equal bytes."""
    return orjson.dumps(record, option=orjson.OPT_SORT_KEYS) + b"\n"


def sort_key(line: bytes) -> tuple[str, int]:
    """The place of a line in the merged file."""
    record = orjson.loads(line)
    return record["lineup"], record["episode"]


@dataclass
class _Sums:
    episodes: int = 0
    mean: float = 0.0
    # Sum of squared distances from the mean, updated score by score (Welford).
    squares: float = 0.0
    failures: int = 0
    steps: int = 0
    last: int = -1


@dataclass
class Records:
    """The episodes that are there: which, and sums over them."""

    done: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    sums: defaultdict[str, _Sums] = field(default_factory=lambda: defaultdict(_Sums))
    kinds: Counter[str] = field(default_factory=Counter)
    # Fingerprints of numerics: of each operator, and of the environment.
    numerics: defaultdict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    # The same by lineup and name: an operator that plays another agent is asked about other observations.
    prints: defaultdict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    # The records themselves, if a stopping rule looks at them.
    kept: list[dict[str, Any]] | None = None
    _digests: dict[tuple[str, int], int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._digests)

    def add(self, record: dict[str, Any], line: bytes) -> Literal["new", "same", "conflict"]:
        """Take in a record; the first of an episode counts."""
        lineup, episode = record["lineup"], record["episode"]
        known = self._digests.get((lineup, episode))
        if known is not None:
            return "same" if known == hash(line) else "conflict"
        self._digests[lineup, episode] = hash(line)
        self.done[lineup].add(episode)
        sums = self.sums[lineup]
        score = float(sum(value for value in record["returns"].values() if value is not None))
        sums.episodes += 1
        sums.last = max(sums.last, episode)
        sums.steps += record.get("length") or 0
        distance = score - sums.mean
        sums.mean += distance / sums.episodes
        sums.squares += distance * (score - sums.mean)
        failures = record.get("failures") or []
        sums.failures += len(failures)
        self.kinds.update(str(each.get("kind")) for each in failures)
        if self.kept is not None:
            self.kept.append({name: record.get(name) for name in _LOOKED_AT})
        for name, fingerprint in (record.get("numerics") or {}).items():
            self.numerics[name].add(str(fingerprint))
            self.prints[lineup, name].add(str(fingerprint))
        return "new"

    @property
    def steps(self) -> int:
        """Steps of all episodes."""
        return sum(each.steps for each in self.sums.values())

    def count(self, lineup: str, below: int) -> int:
        """How many of the first episodes of a lineup are there."""
        done = self.done.get(lineup, set())
        return len(done) if self.sums[lineup].last < below else sum(episode < below for episode in done)

    def mean_return(self, lineup: str) -> float | None:
        """The mean over episodes of the sum over agents."""
        sums = self.sums.get(lineup)
        return sums.mean if sums and sums.episodes else None

    def interval(self, lineup: str) -> tuple[float, float] | None:
        """Student's t interval of that mean; None for fewer than two episodes."""
        sums = self.sums.get(lineup)
        if sums is None or sums.episodes < 2:  # noqa: PLR2004 - one score has no deviation
            return None
        from scipy.special import stdtrit  # noqa: PLC0415 - takes a moment to import

        degrees = sums.episodes - 1
        half = float(stdtrit(degrees, 0.5 + _CONFIDENCE / 2)) * math.sqrt(sums.squares / degrees / sums.episodes)
        return sums.mean - half, sums.mean + half
