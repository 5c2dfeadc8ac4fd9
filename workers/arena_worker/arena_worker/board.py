"""A board of manual mode: one lineup, its environment and its policies, in a thread of its own.

Boards do not wait for each other: one whose policy is slow or dead stops alone.
"""

import queue
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from arena_worker.config import ArenaConfig, LineupConfig
from arena_worker.games import Game
from arena_worker.human import HumanSeat, OvertakenError
from arena_worker.labels import layout_of
from arena_worker.lanes import Lane
from arena_worker.policies import Policies, RefusedError
from arena_worker.probe import Sights
from arena_worker.process import PolicyError
from arena_worker.seats import Decision, OwnSeat, PolicySeat, Seat, said_in
from arena_worker.seeds import Seeds
from mosaic_worker.emitter import Emitter
from mosaic_worker.errors import WorkerError

__all__ = ["Board"]

_SHOWN_BYTES = 4096
"""Observations above this size are described, not shown."""
_MOST_LISTED = 400
"""Actions that a board lists at its start; chess has 4,672."""
_REPLY = "reply"
Command = Callable[["Board"], None]


class Board(threading.Thread):
    """Plays one lineup, command by command."""

    def __init__(
        self,
        config: ArenaConfig,
        lineup: LineupConfig,
        game: Game,
        uses: Any,
        run_dir: Path,
        emitter: Emitter,
        drawing: AbstractContextManager[Any],
    ) -> None:
        """Prepare; `drawing` is held while the environment moves, since pictures are drawn one at a time."""
        super().__init__(name=f"board {lineup.name}", daemon=True)
        self.lineup = lineup
        self.rate: float | None = None
        self.seats: dict[str, Seat] = {}
        self.stream: str | None = None
        """The stream of its frames, if it has one."""
        self.latest: dict[str, Any] = {}
        """What was said last."""
        self._config = config
        self._emitter = emitter
        self._drawing = drawing
        self._game = game
        self._lane = Lane(0, game)
        self._seeds = Seeds(config.seeds, game.agents)
        self._policies = Policies(config, uses, run_dir / lineup.name, emitter)
        self._commands: queue.Queue[tuple[Command, Any, int] | None] = queue.Queue()
        self._request: Any = None
        self._halts = 0
        """How often steps were halted. Each command knows how often that was when it was given."""
        self._drop = 0
        """The last of these halts that also ended waits for people."""
        self._given_at = 0
        """What `_halts` was when the command was given that is carried out."""
        self._moved: dict[str, Any] = {}
        self._asked: dict[str, dict[str, Any]] = {}
        """What each agent's policy was asked for last: its answer is put there when it comes."""

    # From the thread that reads requests.

    def submit(self, command: Command, request: Any) -> None:
        """Have a command carried out after those before it; what follows carries the request's id."""
        self._commands.put((command, request, self._halts))

    def halt(self, *, drop: bool = False) -> None:
        """Take none of the steps that were asked for before; with `drop`, also leave one that waits for a person."""
        self._halts += 1
        self.rate = None
        if drop:
            self._drop = self._halts
            for seat in list(self.seats.values()):
                if isinstance(seat, HumanSeat):
                    seat.wake()

    def close(self) -> None:
        """End the thread, its policies and a wait for a person."""
        self.halt(drop=True)
        self._commands.put(None)
        self._policies.close()

    # The thread of the board.

    def run(self) -> None:
        """Seat the operators, then carry out commands until told to end."""
        try:
            self.seats = self._policies.seats(self.lineup, self._game, Sights())
        except RefusedError as error:
            self._say("refused", message=str(error), operator=error.operator, agent=error.agent)
            return
        except WorkerError as error:
            self._say("failed", message=str(error))
            return
        self._say(
            "ready",
            agents={agent: seat.operator for agent, seat in self.seats.items()},
            people=[agent for agent, seat in self.seats.items() if isinstance(seat, HumanSeat)],
            actions={
                agent: seat.moves.legal_moves(None) if seat.moves.count <= _MOST_LISTED else None
                for agent, seat in self.seats.items()
            },
            layout=layout_of(self._config.environment.id),
            stream=self.stream,
        )
        due = 0.0
        while True:
            try:
                found = self._commands.get(timeout=max(0.0, due - time.monotonic()) if self.rate else None)
                if found is None:
                    return
                command, self._request, self._given_at = found
                command(self)
            except queue.Empty:
                self.step()
            except Exception as error:
                traceback.print_exc()
                self.rate = None
                self._say("failed", message=f"{type(error).__name__}: {error}")
            rate = self.rate  # another thread may set it to None
            due = time.monotonic() + 1 / rate if rate else 0.0

    def play(self, rate: float | None) -> None:
        """Take a number of steps per second; None: no more."""
        if not self._is_halted:
            self.rate = rate

    def reset(self, episode: int, seed: int | None) -> None:
        """Begin an episode."""
        self.rate = None
        self._lane.start(episode, self._seeds, self.seats, keeps_steps=False, video=None)
        if seed is not None:
            self._lane.env_seed = seed
        with self._drawing:
            self._lane.reset()
        self._moved = {}
        for seat in self.seats.values():
            if not self._begin_or_restart(seat):
                self._lane.losers.add(seat.agent)
                self._end("failed" if self._config.failures.then == "fail" else "forfeit")
                return
        self._show("reset")

    def step(self, agent: str | None = None, count: int = 1) -> None:
        """Take steps, up to the end of the episode; with `agent`, in a game of turns, until it has moved so often."""
        lane = self._lane
        if not lane.is_playing and not self._is_halted:
            self._say("over", message="no episode is running: send reset")
            self.rate = None
            return
        while count > 0 and not self._is_halted:
            movers = list(lane.turns)
            try:
                ended = self._step()
            except OvertakenError:
                return
            finally:
                self._excuse_people()
            if ended is not None:
                self.rate = None
                self._end(ended)
                return
            self._show("step")
            if agent is None or agent in movers or agent not in self.seats:
                count -= 1

    @property
    def _is_halted(self) -> bool:
        """Whether a pause or a reset has come after the command that is carried out."""
        return self._given_at < self._halts

    def _is_overtaken(self) -> bool:
        """Whether a reset, or the end, has come after the command that is carried out."""
        return self._given_at < self._drop

    def _excuse_people(self) -> None:
        """Expect no move of a person any more, also where the step has ended before one had to decide."""
        for seat in self.seats.values():
            if isinstance(seat, HumanSeat):
                seat.wake()

    def _step(self) -> str | None:
        """Ask everybody who has to move, then move; return how the episode has ended, if it has."""
        lane = self._lane
        self._moved = {}
        turns = dict(lane.turns)
        people = [agent for agent in turns if isinstance(self.seats[agent], HumanSeat)]
        for agent, turn in turns.items():  # all are asked before any is waited for
            seat = self.seats[agent]
            if isinstance(seat, HumanSeat):
                seat.ask(turn)
            elif isinstance(seat, PolicySeat):
                with suppress(PolicyError):  # noticed when its answer is read
                    self._post(seat)
        if people:
            self._show("waiting_for_human", waiting=people)
        for agent in turns:
            outcome = self._decide(self.seats[agent])
            if outcome is not None:
                return outcome
        with self._drawing:
            ended = lane.move()
        if ended is None and lane.length == self._config.environment.max_steps:
            return "max_steps"
        return ended

    def _decide(self, seat: Seat) -> str | None:
        """Get one agent's move into the lane; return how the episode ends if there is none."""
        lane, rules = self._lane, self._config.failures
        turn = lane.turns[seat.agent]
        answer: dict[str, Any] = {}
        for tried in range(rules.retry + 1):
            try:
                if isinstance(seat, PolicySeat):
                    if tried:
                        self._post(seat)
                    answer = self._answer(seat)
                    decision = seat.decisions(answer, 1)[0]
                elif isinstance(seat, HumanSeat):
                    decision = seat.wait(self._is_overtaken)
                elif isinstance(seat, OwnSeat):
                    decision = seat.decide(0, turn)
                lane.decide(seat.agent, decision.action)
                self._keep(seat, decision, answer)
                return None
            except PolicyError as error:
                then = seat.config.default if isinstance(seat, HumanSeat) else rules.then
                self._fail(seat, error, "retry" if tried < rules.retry and not isinstance(seat, HumanSeat) else then)
                if isinstance(seat, HumanSeat):
                    break
        if then in {"forfeit", "fail"}:
            lane.losers.add(seat.agent)
            return "forfeit" if then == "forfeit" else "failed"
        moves = seat.moves
        action = moves.noop(turn.mask) if then == "noop" else moves.random(turn.mask, lane.generator)
        lane.decide(seat.agent, action)
        self._keep(seat, Decision(action), answer)
        return None

    def _fail(self, seat: Seat, error: PolicyError, then: str) -> None:
        """Count and tell a failure; a process that hangs or has died is started again, in all of its seats."""
        failure = {"agent": seat.agent, "operator": seat.operator, "kind": error.kind, "message": str(error)}
        self._lane.failures.append({**failure, "step": self._lane.length, "then": then})
        self._say("failure", **failure, then=then)
        if isinstance(seat, PolicySeat) and error.kind in {"died", "hung"}:
            self._policies.restart(seat.process)
            for each in self.seats.values():
                if isinstance(each, PolicySeat) and each.process is seat.process:
                    self._asked.pop(each.agent, None)
                    self._begin(each)

    # Policies, one request at a time.

    def _begin_or_restart(self, seat: Seat) -> bool:
        """Tell an operator that an episode begins; start it again if it is dead, and return whether it can play."""
        try:
            self._begin(seat)
        except PolicyError as error:
            is_dead = error.kind in {"died", "hung"}
            ending = "fail" if self._config.failures.then == "fail" else "forfeit"
            try:
                self._fail(seat, error, "restart" if is_dead else ending)
            except PolicyError as again:
                self._say("failure", agent=seat.agent, operator=seat.operator, kind=again.kind, message=str(again))
                return False
            return is_dead
        return True

    def _begin(self, seat: Seat) -> None:
        seed = self._lane.seeds[seat.agent]
        if isinstance(seat, OwnSeat):
            seat.begin(0, seed)
        elif isinstance(seat, PolicySeat):
            self._send(seat, seat.begin(0, seed, self._lane.episode), "begin_episode")
            reply = self._answer(seat)
            if reply.get("type") == "error":
                raise PolicyError("raised", str(reply.get("message")))

    def _post(self, seat: PolicySeat) -> None:
        """Ask for a decision."""
        turn = self._lane.turns[seat.agent]
        if not seat.is_asynchronous:
            self._send(seat, seat.request([0], [turn], probabilities=True), seat.purpose)
            return
        picture = None
        if seat.wants_pictures:
            with self._drawing:
                picture = self._game.render()
        line, number = seat.question(0, turn, self._lane.length, picture)
        self._send(seat, line, seat.purpose, number)

    def _send(self, seat: PolicySeat, line: bytes, what: str, number: int | None = None) -> None:
        self._asked.pop(seat.agent, None)
        asked: dict[str, Any] = {}
        timeout_s = self._config.deadlines.action_s
        if number is not None:
            timeout_s = max(timeout_s, seat.decision_s)
        seat.process.post(line, asked, timeout_s, what, number)
        self._asked[seat.agent] = asked

    def _answer(self, seat: PolicySeat) -> dict[str, Any]:
        """Wait for the answer to what was asked last; those to other questions are put where they belong."""
        if seat.agent not in self._asked:  # another agent's failure has started the process anew
            self._post(seat)
        asked = self._asked[seat.agent]
        while _REPLY not in asked:
            for answer, reply in seat.process.wait():
                answer.purpose[_REPLY] = reply
        del self._asked[seat.agent]
        found: dict[str, Any] = asked[_REPLY]
        if isinstance(found.get("report"), dict):
            self._lane.reports[seat.agent] = found["report"]
        return found

    # What is told.

    def _keep(self, seat: Seat, decision: Decision, answer: dict[str, Any]) -> None:
        """Keep what was played, and what the policy told of it: its words, and its report of the episode so far."""
        action = self._lane.actions[seat.agent]
        told = {"said": said_in(answer), "report": answer.get("report")}
        self._moved[seat.agent] = {
            "operator": seat.operator,
            "action": action,
            "label": seat.moves.label(action),
            "probabilities": decision.probabilities,
            **{name: value for name, value in told.items() if value is not None},
        }

    def _show(self, status: str, **more: Any) -> None:
        lane = self._lane
        turns = {
            agent: {
                "operator": self.seats[agent].operator,
                "is_human": isinstance(self.seats[agent], HumanSeat),
                "observation": _shown(turn.observation),
                "legal_moves": self.seats[agent].moves.legal_moves(turn.mask),
            }
            for agent, turn in lane.turns.items()
        }
        told = {"episode": lane.episode, "seed": lane.env_seed, "step": lane.length, "rate": self.rate, "turns": turns}
        self._say(status, **told, moved=self._moved, rewards=self._game.rewards, returns=lane.totals, **more)

    def _end(self, ended: str) -> None:
        record = self._lane.finish(ended)
        record.pop("timing")
        self._say("over", **record, moved=self._moved, rewards=self._game.rewards)
        self._emitter.episode(
            record["episode"],
            sum(record["returns"].values()),
            length=record["length"],
            seed=record["env_seed"],
            returns=record["returns"],
            lineup=self.lineup.name,
            ended=ended,
            action_hash=record["action_hash"],
        )

    def _say(self, status: str, **facts: Any) -> None:
        reply = {"type": "board", "board": self.lineup.name, "status": status, **facts}
        self.latest = reply
        self._emitter.reply(reply if self._request is None else {**reply, "id": self._request})


def _shown(observation: Any) -> Any:
    """Return an observation, or for a large one what it is."""
    if isinstance(observation, dict):
        return {key: _shown(part) for key, part in observation.items()}
    if isinstance(observation, np.ndarray) and observation.nbytes > _SHOWN_BYTES:
        return {"shape": list(observation.shape), "dtype": str(observation.dtype)}
    return observation
