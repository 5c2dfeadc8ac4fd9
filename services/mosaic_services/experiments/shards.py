"""Cutting an experiment into shards, and what is missing of it. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mosaic_bus.messages import RunSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from pathlib import Path

__all__ = [
    "ARENA",
    "SESSIONS",
    "Slice",
    "cut",
    "default_shards",
    "missing",
    "replay_spec",
    "session_spec",
    "shard_spec",
    "without",
]

ARENA = "arena"
# The group of all sessions.
SESSIONS = "sessions"
# Operators that need no worker: the arena plays them itself.
ARENA_PLAYS = frozenset({"human", "random", "noop"})
# Fewer episodes than this are not worth a shard of their own: its processes take seconds to start.
_WORTH_A_SHARD = 16
# With this many lineups per shard, whole lineups are dealt out; with fewer, each shard plays a part of every lineup.
_MANY_LINEUPS = 4


@dataclass(frozen=True, slots=True, order=True)
class Slice:
    """Episodes `first` to `last`, without `last`, of a lineup."""

    lineup: str
    first: int
    last: int

    def __len__(self) -> int:
        return self.last - self.first


def missing(wanted: Mapping[str, int], done: Mapping[str, Collection[int]]) -> list[Slice]:
    """Find the episodes that no record has yet: for each lineup, runs of consecutive numbers."""
    return [each for lineup, count in wanted.items() for each in without(Slice(lineup, 0, count), done.get(lineup, ()))]


def without(piece: Slice, done: Collection[int]) -> list[Slice]:
    """What is left of a slice: runs of consecutive numbers that are not done."""
    found = []
    first = None
    for episode in range(piece.first, piece.last + 1):
        if episode < piece.last and episode not in done:
            first = episode if first is None else first
        elif first is not None:
            found.append(Slice(piece.lineup, first, episode))
            first = None
    return found


def default_shards(episodes: int, cpus: float) -> int:
    """Choose a number of shards: as many as CPUs, unless there are few episodes."""
    return max(1, min(int(cpus), -(-episodes // _WORTH_A_SHARD)))


def cut(slices: Sequence[Slice], shards: int) -> list[tuple[Slice, ...]]:
    """Deal slices to at most so many shards, evenly by episodes; no shard is empty."""
    total = sum(map(len, slices))
    if not total:
        return []
    lineups = {each.lineup for each in slices}
    if len(lineups) >= _MANY_LINEUPS * shards:
        return _cut_evenly(slices, min(shards, total))
    dealt: defaultdict[int, list[Slice]] = defaultdict(list)
    for lineup in dict.fromkeys(each.lineup for each in slices):
        own = [each for each in slices if each.lineup == lineup]
        pieces = _cut_evenly(own, min(shards, sum(map(len, own))))
        # Lineups with fewer episodes than shards go to the shards that have least so far.
        free = sorted(range(shards), key=lambda number: (sum(map(len, dealt[number])), number))
        for number, piece in zip(sorted(free[: len(pieces)]), pieces, strict=True):
            dealt[number] += piece
    return [tuple(dealt[number]) for number in sorted(dealt) if dealt[number]]


def _cut_evenly(slices: Iterable[Slice], parts: int) -> list[tuple[Slice, ...]]:
    """Cut a sequence of slices into parts of equal length, in order."""
    left = list(slices)
    total, made = sum(map(len, left)), []
    for part in range(parts):
        size = total * (part + 1) // parts - total * part // parts
        piece = []
        while size:
            head = left[0]
            taken = min(size, len(head))
            piece.append(Slice(head.lineup, head.first, head.first + taken))
            size -= taken
            left[0] = Slice(head.lineup, head.first + taken, head.last)
            if not len(left[0]):
                left.pop(0)
        made.append(tuple(piece))
    return made


def shard_spec(plan: Mapping[str, Any], play: Sequence[Slice], name: str, requires: Sequence[str] = ()) -> RunSpec:
    """Write the run of one shard. `plan` is the resolved experiment, as in experiment.json."""
    lineups = [each for each in plan["lineups"] if any(piece.lineup == each["name"] for piece in play)]
    return _spec(plan, lineups, play, name, requires)


def session_spec(plan: Mapping[str, Any], name: str, frames: str = "off") -> RunSpec:
    """Write the run of a session: all lineups, each on a board of its own, played command by command."""
    spec = _spec(plan, plan["lineups"], (), name, ())
    config = {
        **spec.config,
        "mode": "manual",
        "fastlane_video_mode": frames,
        "fastlane_grid_limit": len(plan["lineups"]),
    }
    return spec.model_copy(update={"config": config, "interactive": True, "group": SESSIONS})


def replay_spec(plan: Mapping[str, Any], record: Mapping[str, Any], name: str, steps: Path, offset: int) -> RunSpec:
    """Write the run that plays an episode again from its recorded actions, filmed. It needs no policy."""
    lineups = [each for each in plan["lineups"] if each["name"] == record["lineup"]]
    nobody = {operator: {"worker": "noop", "profile": "default", "config": {}} for operator in plan["operators"]}
    filmed = {**plan, "operators": nobody, "steps": False, "videos": [record["episode"]], "group": ""}
    spec = _spec(filmed, lineups, (), name, ())
    replay = {"records": [dict(record)], "steps": str(steps), "offset": offset}
    return spec.model_copy(update={"config": {**spec.config, "mode": "replay", "replay": replay}})


def _spec(
    plan: Mapping[str, Any],
    lineups: Sequence[Mapping[str, Any]],
    play: Sequence[Slice],
    name: str,
    requires: Sequence[str],
) -> RunSpec:
    operators = {operator: plan["operators"][operator] for each in lineups for operator in each["agents"].values()}
    fields = ("id", "family", "kwargs", "max_steps", "imports", "competitive")
    environment = {key: plan["environment"].get(key) for key in fields}
    config = {
        "experiment": plan["name"],
        "environment": environment,
        "operators": {operator: _entry(each) for operator, each in operators.items()},
        "lineups": lineups,
        "seeds": plan["seeds"],
        "play": [{"lineup": each.lineup, "episodes": [each.first, each.last]} for each in play],
        "failures": plan["failures"],
        "deadlines": plan["deadlines"],
        "record": {"steps": plan["steps"], "videos": list(plan["videos"])},
        "lanes": plan["lanes"],
        "step_s": plan.get("step_s", 0.0),
    }
    own = (ARENA, plan["environment"]["profile"])
    uses = sorted(
        {(each["worker"], each["profile"]) for each in operators.values() if each["worker"] not in ARENA_PLAYS} - {own}
    )
    return RunSpec.model_validate(
        {
            "worker": own[0],
            "profile": own[1],
            "uses": [{"worker": worker, "profile": profile} for worker, profile in uses],
            "config": config,
            "name": name,
            "group": plan["group"],
            "resources": plan["resources"],
            "requires": sorted({*plan["requires"], *requires}),
        }
    )


def _entry(operator: Mapping[str, Any]) -> dict[str, Any]:
    entry = {key: operator[key] for key in ("worker", "profile", "config")}
    return entry | ({"checkpoint": operator["checkpoint"]} if operator.get("checkpoint") else {})
