"""Manual mode: an interactive run in which several boards are played side by side, command by command.

Requests come over the attempt's channel. Each is answered at once with what was understood; what then happens on a
board follows as replies of type `board`, which carry the id of the request.
"""

import os
import threading
from typing import Any

from arena_worker.board import Board
from arena_worker.config import ArenaConfig
from arena_worker.games import Game, make_game
from arena_worker.human import HumanSeat
from arena_worker.runtime import make_lane
from arena_worker.watchdog import Watchdog
from mosaic_worker.config import near
from mosaic_worker.context import RunContext
from mosaic_worker.errors import ConfigError, RequestError
from mosaic_worker.interactive import InteractiveWorker

__all__ = ["ManualArena"]

_MOST_BOARDS = 8
_FASTEST = 1000.0
_MOST_STEPS = 10_000


class ManualArena(InteractiveWorker):
    """A session: a board for each lineup."""

    def __init__(self, context: RunContext[ArenaConfig]) -> None:
        """Make the boards; each seats its operators in a thread of its own."""
        config = context.config
        if len(config.lineups) > _MOST_BOARDS:
            raise ConfigError(f"lineups: {len(config.lineups)} do not fit side by side; give at most {_MOST_BOARDS}")
        grid, drawing = make_lane(context), threading.Lock()
        is_grid = config.fastlane_settings(os.environ).mode == "grid"
        one = config.model_copy(update={"lanes": 1})
        self._episode = -1
        self._boards: dict[str, Board] = {}
        games: list[Game] = []
        for index, lineup in enumerate(config.lineups):
            frames = grid if is_grid else make_lane(context, index)
            game = make_game(config.environment, frames, index, render=True)  # a policy may want to see pictures
            games.append(game)
            board = Board(one, lineup, game, context.uses, context.run_dir, context.emitter, drawing)
            board.stream = frames.stream if frames.wants_frames else None
            self._boards[lineup.name] = board
        for board in self._boards.values():
            board.start()
        self._watchdog = Watchdog(games, config.deadlines.step_s, context.emitter, self._end_policies)
        self._watchdog.start()

    def handle(self, command: str, request: dict[str, Any]) -> dict[str, Any] | None:
        """Carry out a command of manual mode."""
        identity = request.get("id")
        if command == "boards":
            boards = {name: board.lineup.agents for name, board in self._boards.items()}
            return {"type": "boards", "boards": boards, "latest": {n: b.latest for n, b in self._boards.items()}}
        if command == "reset":
            return self._reset(request, identity)
        if command == "step":
            count, agent = _whole("n", request.get("n", 1)), request.get("agent", request.get("player_id"))
            if not 1 <= count <= _MOST_STEPS:
                raise RequestError(f"n {count} is not a number of steps from 1 to {_MOST_STEPS:,}")
            return self._each(request, identity, command, lambda board: board.step(agent, count))
        if command == "play":
            rate = request.get("rate", 4)
            if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= _FASTEST:
                raise RequestError(f"rate {rate!r} is not a number of steps per second, at most {_FASTEST:g}")
            return self._each(request, identity, command, lambda board: board.play(float(rate)))
        if command == "pause":
            for board in self._chosen(request):
                board.halt()  # now, not after the commands that wait
            return self._each(request, identity, command, lambda board: board.play(None))
        if command in {"human_input", "cancel_input"}:
            seat = self._person(request)
            if command == "cancel_input":
                return seat.withdraw()
            return seat.offer(seat.action_of(request["key"]) if "key" in request else _move(request))
        return None

    def close(self) -> None:
        """End every board."""
        self._watchdog.stop()
        for board in self._boards.values():
            board.close()
        for board in self._boards.values():
            board.join(5)

    def _end_policies(self) -> None:
        for board in self._boards.values():
            board.close()

    def _reset(self, request: dict[str, Any], identity: Any) -> dict[str, Any]:
        """Begin the next episode, under one seed for all boards, one for each, or those of the config."""
        episode, chosen, seeds = _whole("episode", request.get("episode", self._episode + 1)), self._chosen(request), {}
        given = request.get("seeds", request.get("seed"))
        if isinstance(given, dict):
            self._chosen({"boards": list(given)})
            seeds = {name: _whole(f"seed of {name}", seed) for name, seed in given.items()}
        elif given is not None:
            seeds = dict.fromkeys(self._boards, _whole("seed", given))
        self._episode = episode
        for board in chosen:
            seed = seeds.get(board.lineup.name)
            board.halt(drop=True)
            board.submit(lambda board, seed=seed: board.reset(episode, seed), identity)  # type: ignore[misc]
        return {"type": "accepted", "command": "reset", "episode": episode, "boards": [b.lineup.name for b in chosen]}

    def _each(self, request: dict[str, Any], identity: Any, command: str, *actions: Any) -> dict[str, Any]:
        chosen = self._chosen(request)
        for board in chosen:
            for action in actions:
                board.submit(action, identity)
        return {"type": "accepted", "command": command, "boards": [board.lineup.name for board in chosen]}

    def _chosen(self, request: dict[str, Any]) -> list[Board]:
        names = request.get("boards") or list(self._boards)
        if not isinstance(names, list):
            raise RequestError(f"boards {names!r} is not a list of names")
        for name in names:
            if name not in self._boards:
                raise RequestError(f"there is no board {name!r}{near(str(name), list(self._boards))}")
        return [self._boards[name] for name in names]

    def _person(self, request: dict[str, Any]) -> HumanSeat:
        """Find whose move it is: of the board and agent that are named, or of the only person who has to move."""
        agent = request.get("agent", request.get("player_id"))
        wanted = {"boards": [request["board"]]} if "board" in request else {}
        people = [
            seat
            for board in self._chosen(wanted)
            for seat in board.seats.values()
            if isinstance(seat, HumanSeat) and agent in {None, seat.agent}
        ]
        if len(people) > 1:
            people = [seat for seat in people if seat.is_asked] or people
        if len(people) != 1:
            found = ", ".join(seat.agent for seat in people) or "nobody"
            raise RequestError(f"a move of whom? name board and agent; people play here as: {found}")
        return people[0]


def _move(request: dict[str, Any]) -> Any:
    for name in ("action", "move"):
        if name in request:
            return request[name]
    raise RequestError("human_input needs action (its number or its name) or key")


def _whole(name: str, value: Any) -> int:
    if type(value) is int and value >= 0:
        return value
    raise RequestError(f"{name} {value!r} is not a whole number of 0 or more")
