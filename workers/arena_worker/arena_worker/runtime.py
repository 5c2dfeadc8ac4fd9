"""Plays a shard: every lineup, every episode that is not there yet."""

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from arena_worker.actions import Moves
from arena_worker.config import ArenaConfig, LineupConfig, ReplayConfig
from arena_worker.games import Game, make_game
from arena_worker.lanes import Lane
from arena_worker.policies import Policies, RefusedError, SpentError
from arena_worker.probe import look_around
from arena_worker.provenance import environments, machine, versions
from arena_worker.records import EPISODES, Records
from arena_worker.replay import ReplayError, compare, replay_actions
from arena_worker.seats import PolicySeat, Seat
from arena_worker.seeds import Seeds
from arena_worker.table import Table
from arena_worker.watchdog import Watchdog
from mosaic_worker.context import RunContext
from mosaic_worker.errors import ConfigError, WorkerError
from mosaic_worker.frames.fastlane import FOLDER, FastLane

Report = Callable[[dict[str, Any], Lane], None]

__all__ = ["Shard", "make_lane", "preflight", "run"]


def preflight(config: ArenaConfig) -> dict[str, Any]:
    """Make the environment once, to refuse what cannot be made, and say what will be played."""
    game = make_game(config.environment)
    try:
        agents = game.agents
    finally:
        game.close()
    episodes = sum(end - first for first, end in (play.episodes for play in config.play))
    return {"task": f"{len(config.lineups)} lineups on {config.environment.id}", "agents": agents, "episodes": episodes}


def make_lane(context: RunContext[ArenaConfig], board: int | None = None) -> FastLane:
    """Make the FastLane of the run, or of one board; videos of chosen episodes are the arena's own.

    In manual mode every step is drawn: two moves may follow each other at once, and a person has to see both.
    """
    settings = context.config.fastlane_settings(os.environ)
    stream = "main"
    if board is not None and settings.mode == "single":
        settings, stream = settings.model_copy(update={"slot": board}), f"board-{board}"
    return FastLane(
        settings,
        os.environ.get(FOLDER),
        stream=stream,
        every_step=context.config.mode == "manual",
        run_dir=context.run_dir,
        emitter=context.emitter,
    )


def run(context: RunContext[ArenaConfig]) -> dict[str, Any]:
    """Play what the config asks for."""
    config = context.config
    if config.mode == "manual":
        raise ConfigError("mode: manual is for an interactive run; submit it with interactive: true")
    if config.replay is not None and config.mode == "replay":
        return Shard(context).replay(config.replay)
    return Shard(context).play()


class Shard:
    """One run of the arena."""

    def __init__(self, context: RunContext[ArenaConfig]) -> None:
        """Make nothing yet."""
        self._context = context
        self._config = context.config
        self._emitter = context.emitter
        self._records = Records(context.run_dir)
        self._frames = make_lane(context)
        self._games: list[Game] = []
        self._pictures = False
        self._spent: dict[str, str] = {}
        """Why lineups were not played to their end."""
        self._step = 0
        self._play_s = 0.0
        self._counts = {"episodes": 0, "failures": 0, "refused": 0}
        self._policies = Policies(
            config=self._config, uses=context.uses, run_dir=context.run_dir, emitter=self._emitter
        )
        self._watchdog = Watchdog(self._games, self._config.deadlines.step_s, self._emitter, self._policies.close)
        self._watchdog.start()

    def play(self) -> dict[str, Any]:
        """Play every episode that no earlier attempt has recorded; return a summary."""
        config = self._config
        plans = list(self._plans())
        self._announce(sum(len(episodes) for _, episodes in plans))
        if self._context.resume is not None:
            self._step = self._records.take_over(self._context.resume.path)
            self._emitter.checkpoint_loaded(self._context.resume.path, step=self._step)
        try:
            self._look_around()
            for number, (lineup, episodes) in enumerate(plans):
                later = {name for plan, _ in plans[number:] for name in plan.agents.values()}
                self._policies.retire(later)
                todo = [episode for episode in episodes if (lineup.name, episode) not in self._records.done]
                if todo:
                    self._play(lineup, todo)
        finally:
            self._close()
        if self._spent:
            raise WorkerError("; ".join(f"lineup {name} was stopped: {why}" for name, why in self._spent.items()))
        return {
            **self._counts,
            "steps": self._step,
            "play_s": round(self._play_s, 3),
            "environment": config.environment.id,
        }

    def replay(self, wanted: ReplayConfig) -> dict[str, Any]:
        """Play recorded episodes again and compare; ReplayError if one differs."""
        self._announce(len(wanted.records))
        different: list[str] = []
        try:
            if wanted.steps is not None:
                for record, played, lane in replay_actions(self._context, wanted, self._game(0)):
                    self._verify(record, {"lineup": record["lineup"], **played}, lane, different)
            else:
                self._look_around()
                for lineup in self._config.lineups:
                    known = {each["episode"]: each for each in wanted.records if each.get("lineup") == lineup.name}
                    if known:
                        self._play(lineup, sorted(known), partial(self._verify_one, known, different))
        finally:
            self._close()
        if different:
            raise ReplayError(f"{len(different)} of {len(wanted.records)} episodes differ: {'; '.join(different[:5])}")
        return {"verified": self._counts["episodes"], "steps": self._step}

    def _verify_one(
        self, known: dict[int, dict[str, Any]], different: list[str], played: dict[str, Any], lane: Lane
    ) -> None:
        self._verify(known[played["episode"]], played, lane, different)

    def _verify(self, record: dict[str, Any], played: dict[str, Any], lane: Lane, different: list[str]) -> None:
        """Compare an episode with its record, and report both."""
        differences = compare(record, played)
        self._emitter.emit(
            "replayed",
            lineup=record["lineup"],
            episode=record["episode"],
            verified=not differences,
            differences=differences,
        )
        if differences:
            different.append(f"{record['lineup']} episode {record['episode']} in {', '.join(differences)}")
        self._report(played, lane)

    def _look_around(self) -> None:
        first = self._game(0)
        moves = {agent: Moves(first.action_spaces[agent], first.meanings[agent]) for agent in first.agents}
        self._sights = look_around(first, moves)

    def _close(self) -> None:
        self._watchdog.stop()
        self._policies.close()
        for game in self._games:
            game.close()
        self._records.close()

    def _announce(self, episodes: int) -> None:
        config = self._config
        self._emitter.run_started(
            config.run_id,
            self._context.metadata.name,
            config=config.model_dump(mode="json"),
            env_id=config.environment.id,
            seed=config.seeds.root,
            total_episodes=episodes,
            task=f"{', '.join(lineup.name for lineup in config.lineups)} on {config.environment.id}",
            versions=versions(),
            machine=machine(),
            environments=environments(self._context.uses),
        )

    def _plans(self) -> Iterator[tuple[LineupConfig, list[int]]]:
        """Yield each lineup that has episodes, with all of them in order."""
        lineups = {lineup.name: lineup for lineup in self._config.lineups}
        wanted: dict[str, set[int]] = {}
        for play in self._config.play:
            wanted.setdefault(play.lineup, set()).update(range(*play.episodes))
        for name, episodes in wanted.items():
            yield lineups[name], sorted(episodes)

    def _play(self, lineup: LineupConfig, episodes: list[int], then: Report | None = None) -> None:
        """Play a lineup. One that cannot be played has a record for each episode that says so."""
        try:
            seats = self._policies.seats(lineup, self._game(0), self._sights)
        except RefusedError as error:
            self._refuse(lineup, episodes, error)
            return
        if any(isinstance(seat, PolicySeat) and seat.wants_pictures for seat in seats.values()):
            self._show_pictures()
        numerics = {**_numerics(seats), "environment": self._sights.fingerprint}
        lanes = [Lane(index, self._game(index)) for index in range(min(self._config.lanes, len(episodes)))]
        stop = self._context.stop

        left = set(episodes)

        def report(record: dict[str, Any], lane: Lane) -> None:
            left.discard(record["episode"])
            (then or self._report)({"lineup": lineup.name, **record, "numerics": numerics}, lane)

        began = time.monotonic()
        try:
            Table(self._config, seats, lanes, self._policies, stop.check, report).play(episodes)
        except RefusedError as error:
            self._policies.retire(self._config.operators.keys() - {error.operator})  # its answers are still under way
            if isinstance(error, SpentError):  # these episodes are not played, so they have no records
                self._spent[lineup.name] = str(error)
            else:
                self._refuse(lineup, sorted(left), error)
        self._play_s += time.monotonic() - began

    def _report(self, record: dict[str, Any], lane: Lane) -> None:
        self._step += record["length"]
        record["timing"]["step"] = self._step
        self._keep(record, lane.steps)
        if lane.video is not None:
            name = f"{record['lineup']}-episode-{record['episode']}".replace("/", "_")
            info = {key: record[key] for key in ("lineup", "episode", "returns")} | {"seed": record["env_seed"]}
            lane.video.write(self._context.run_dir, name, self._emitter, info)

    def _keep(self, record: dict[str, Any], steps: list[dict[str, Any]] | None) -> None:
        """Write a record, to the file and to the journal."""
        self._records.add(record, steps)
        if self._counts["episodes"] == 0:  # the file is complete to its last line, so it is named once
            self._emitter.checkpoint_saved(EPISODES, step=self._step)
        self._counts["episodes"] += 1
        self._counts["failures"] += len(record["failures"])
        total = sum(record["returns"].values())
        known = {key: value for key, value in record.items() if key not in {"episode", "length", "returns"}}
        self._emitter.episode(
            record["episode"],
            total,
            length=record["length"],
            step=self._step,
            seed=record["env_seed"],
            returns=record["returns"],
            **known,
        )

    def _refuse(self, lineup: LineupConfig, episodes: list[int], error: RefusedError) -> None:
        self._emitter.log("error", str(error))
        self._counts["refused"] += len(episodes)
        seeds = Seeds(self._config.seeds, self._game(0).agents)
        failure = {
            "agent": error.agent,
            "operator": error.operator,
            "kind": "refused",
            "step": 0,
            "message": str(error)[:500],
            "then": "fail",
        }
        for episode in episodes:
            self._context.stop.check()
            record = {
                "lineup": lineup.name,
                "episode": episode,
                "env_seed": seeds.environment(episode),
                "seeds": seeds.agents(episode),
                "returns": {},
                "length": 0,
                "ended": "failed",
                "winners": None,
                "failures": [failure],
                "action_hash": None,
                "numerics": {"environment": self._sights.fingerprint},
                "timing": {"step": self._step},
            }
            self._keep(record, None)

    def _show_pictures(self) -> None:
        """Make the environments again, such that they render: a policy wants to see them."""
        if not self._pictures:
            self._pictures = True
            while self._games:
                self._games.pop().close()

    def _game(self, index: int) -> Game:
        while len(self._games) <= index:
            render = self._pictures or bool(self._config.record.videos)
            game = make_game(self._config.environment, self._frames, len(self._games), render=render)
            self._games.append(game)
        return self._games[index]


def _numerics(seats: dict[str, Seat]) -> dict[str, str]:
    """Return the fingerprint of each operator; one that plays several agents has one for each, joined."""
    found: dict[str, list[str]] = {}
    for seat in seats.values():
        prints = found.setdefault(seat.operator, [])
        if seat.fingerprint not in prints:
            prints.append(seat.fingerprint)
    return {operator: "+".join(prints) for operator, prints in found.items()}
