"""Plays recorded episodes again, from their actions or by asking the policies anew, and compares the outcomes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from arena_worker.config import ArenaConfig, ReplayConfig
from arena_worker.games import Game
from arena_worker.lanes import Lane
from arena_worker.seats import OwnSeat, Seat
from arena_worker.seeds import Seeds
from arena_worker.videos import Video
from mosaic_worker.context import RunContext
from mosaic_worker.errors import ConfigError, WorkerError

__all__ = ["ReplayError", "compare", "replay_actions"]

_COMPARED = ("action_hash", "returns", "length", "ended", "env_seed")


class ReplayError(WorkerError):
    """An episode did not come out as its record says."""


def compare(record: dict[str, Any], played: dict[str, Any]) -> dict[str, Any]:
    """Return what differs between a record and the episode played again: name, then both values."""
    plain = json.loads(json.dumps(played, default=str))  # as a record is read from its file
    return {name: [record.get(name), plain.get(name)] for name in _COMPARED if record.get(name) != plain.get(name)}


def replay_actions(
    context: RunContext[ArenaConfig], wanted: ReplayConfig, game: Game
) -> Iterator[tuple[dict[str, Any], dict[str, Any], Lane]]:
    """Play each record with the actions of steps.jsonl; yield it, the record of the replay, and the lane."""
    actions = _actions(Path(wanted.steps or ""), wanted)
    seats: dict[str, Seat] = {agent: OwnSeat("replay", agent, game, "replay") for agent in game.agents}
    lane = Lane(0, game)
    for record in wanted.records:
        context.stop.check()
        key = record.get("lineup"), record.get("episode")
        if key not in actions and record.get("length"):
            raise ConfigError(f"replay.steps: {wanted.steps!r} has no steps of episode {key[1]} of lineup {key[0]!r}")
        seeds = Seeds(context.config.seeds, game.agents)
        is_shown = record["episode"] in context.config.record.videos
        lane.start(record["episode"], seeds, seats, keeps_steps=False, video=Video() if is_shown else None)
        lane.env_seed = record["env_seed"]
        lane.reset()
        ended = None
        for step in actions.get(key, []):
            for agent, action in step["actions"].items():
                lane.decide(agent, action)
            ended = lane.move()
        # An episode that was cut off, or forfeited, did not end by itself.
        yield record, lane.finish(ended or str(record["ended"])), lane


def _actions(path: Path, wanted: ReplayConfig) -> dict[tuple[Any, Any], list[dict[str, Any]]]:
    """Read the steps of the episodes that are wanted, and no further."""
    found: dict[tuple[Any, Any], list[dict[str, Any]]] = {
        (record.get("lineup"), record.get("episode")): [] for record in wanted.records if record.get("length")
    }
    left = sum(record.get("length") or 0 for record in wanted.records)
    try:
        with path.open("rb") as file:
            file.seek(wanted.offset)
            while left > 0 and (line := file.readline()):
                try:
                    step = json.loads(line)
                    found[step["lineup"], step["episode"]].append(step)
                except (ValueError, KeyError, TypeError):
                    continue  # another episode, or a line that was cut off
                left -= 1
    except OSError as error:
        raise ConfigError(f"replay.steps: {str(path)!r} cannot be read: {error.strerror}") from error
    return {key: steps for key, steps in found.items() if steps}
