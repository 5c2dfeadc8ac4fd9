"""The table: plays the episodes of one lineup, several at once, and asks each policy for whole batches.

Everybody who has to move is asked before anyone's answer is read. When a policy raises in a batch, hangs or dies, it is
not known whose fault it was, so each episode that was under way is played again alone. What happens then is its
outcome: the record of an episode never depends on the episodes beside it.
"""

import os
import select
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from arena_worker.config import ArenaConfig
from arena_worker.lanes import Lane
from arena_worker.policies import Policies, RefusedError, SpentError
from arena_worker.process import Answer, PolicyError, PolicyProcess
from arena_worker.seats import OUTSTANDING, OwnSeat, PolicySeat, Seat, said_in
from arena_worker.seeds import Seeds
from arena_worker.videos import Video
from mosaic_worker.close_watch import CloseWatch

__all__ = ["Table"]

_TICK_S = 1.0
"""Maximum time between two looks at whether to stop, and at whether an answer is overdue."""


class Table:
    """One lineup at its lanes."""

    def __init__(
        self,
        config: ArenaConfig,
        seats: dict[str, Seat],
        lanes: list[Lane],
        policies: Policies,
        check: Callable[[], None],
        report: Callable[[dict[str, Any], Lane], None],
    ) -> None:
        """Play with `seats` in `lanes`; `check` may raise, `report` gets each record."""
        self._config = config
        self._step_s, self._action_s = config.step_s, config.deadlines.action_s
        self._max_steps = config.environment.max_steps
        self._seats = seats
        self._policies = policies
        self._check = check
        self._report = report
        self._asked = [seat for seat in seats.values() if isinstance(seat, PolicySeat)]
        self._lanes = lanes[: min([len(lanes), *(seat.lanes for seat in self._asked)])]
        self._seeds = Seeds(config.seeds, lanes[0].game.agents)
        self._alone: deque[int] = deque()
        self._source: deque[int] = deque()
        self._is_alone = len(self._lanes) == 1
        self._waiting: dict[str, deque[Lane]] = {seat.agent: deque() for seat in self._asked}
        self._under_way: dict[str, int] = dict.fromkeys(self._waiting, 0)
        self._ready: deque[Lane] = deque()
        self._idle: list[Lane] = []
        self._look_at = 0.0
        # Lanes whose moves are decided but not due yet, each with the generation of its episode.
        self._paced: list[tuple[Lane, int]] = []
        self._cpus = len(os.sched_getaffinity(0)) if len(self._lanes) == 1 else 0
        self._watch = CloseWatch()
        self._processes: dict[int, PolicyProcess] = {}
        self._poll = select.poll()

    def play(self, episodes: Iterable[int]) -> None:
        """Play all of these episodes."""
        self._source = deque(episodes)
        self._listen()
        self._run(self._lanes)
        while self._alone:
            self._source, self._alone = self._alone, deque()
            self._is_alone = True
            self._run(self._lanes[:1])

    def _run(self, lanes: list[Lane]) -> None:
        self._idle = list(lanes)
        while self._source or len(self._idle) < len(lanes):
            self._check()
            try:
                while self._idle and self._source:
                    self._begin(self._idle.pop())
                for _ in range(len(self._ready)):
                    self._move(self._ready.popleft())
                if self._paced:
                    self._move_paced()
                self._send(len(lanes))
                if not self._ready:
                    self._receive()
            except _BrokenError as broken:
                self._mend(broken, lanes)

    # The course of an episode.

    def _begin(self, lane: Lane) -> None:
        episode, record = self._source.popleft(), self._config.record
        video = Video() if episode in record.videos else None
        lane.start(episode, self._seeds, self._seats, keeps_steps=record.steps, video=video)
        for seat in self._seats.values():
            self._announce(lane, seat)
        lane.reset()
        self._want(lane)

    def _announce(self, lane: Lane, seat: Seat) -> None:
        """Tell an operator that an episode begins; its answer is read with the others."""
        seed = lane.seeds[seat.agent]
        if isinstance(seat, OwnSeat):
            seat.begin(lane.index, seed)
        elif isinstance(seat, PolicySeat):
            purpose = (seat, None, [(lane, lane.generation)])
            try:
                line = seat.begin(lane.index, seed, lane.episode)
                seat.process.post(line, purpose, self._config.deadlines.action_s, "begin_episode")
            except PolicyError as error:
                raise _BrokenError(seat.process, error, purpose) from error

    def _want(self, lane: Lane) -> None:
        """Have everybody decide who has to move."""
        for agent, turn in lane.turns.items():
            seat = self._seats[agent]
            if isinstance(seat, OwnSeat):
                self._decide(lane, agent, seat.decide(lane.index, turn).action)
            else:
                self._waiting[agent].append(lane)

    def _decide(self, lane: Lane, agent: str, action: Any) -> None:
        try:
            if lane.decide(agent, action):
                self._ready.append(lane)
        except PolicyError as error:
            self._fail(lane, self._seats[agent], error)

    def _move(self, lane: Lane) -> None:
        if not lane.is_playing:
            return
        if self._step_s:
            now = time.monotonic()
            if now < lane.due:
                self._paced.append((lane, lane.generation))
                return
            lane.due = now + self._step_s
        ended = lane.move()
        if ended is None and lane.length == self._max_steps:
            ended = "max_steps"
        if ended is not None:
            self._finish(lane, ended)
        else:
            self._want(lane)

    def _move_paced(self) -> None:
        """Move in the lanes whose time has come."""
        waiting, self._paced = self._paced, []
        for lane, born in waiting:
            if lane.generation == born:
                self._move(lane)

    def _finish(self, lane: Lane, ended: str) -> None:
        record = lane.finish(ended)
        self._idle.append(lane)
        self._ask_no_more(lane)
        self._report(record, lane)

    def _ask_no_more(self, lane: Lane) -> None:
        """Take a lane out of all queues: in a simultaneous move another agent may not have been asked yet."""
        for queue in self._waiting.values():
            if lane in queue:
                queue.remove(lane)

    # Requests and answers.

    def _send(self, lanes: int) -> None:
        """Ask every policy that has enough to decide on."""
        for seat in self._asked:
            queue = self._waiting[seat.agent]
            if not queue:
                continue
            while seat.is_asynchronous and queue:
                if (lane := queue.popleft()).is_playing:
                    self._ask_alone(seat, lane)
            # Two batches, of half of the lanes each, keep both sides busy.
            limit = min(seat.batch, max(seat.least, (lanes + 1) // 2))
            while queue and self._under_way[seat.agent] < OUTSTANDING:
                if self._under_way[seat.agent] and len(queue) < limit:
                    break
                batch = [queue.popleft() for _ in range(min(limit, len(queue)))]
                batch = [lane for lane in batch if lane.is_playing]
                if batch:
                    self._ask(seat, batch)

    def _ask(self, seat: PolicySeat, batch: list[Lane]) -> None:
        agent, indices = seat.agent, [lane.index for lane in batch]
        purpose = (seat, indices, [(lane, lane.generation) for lane in batch])
        line = seat.request(indices, [lane.turns[agent] for lane in batch])
        try:
            seat.process.post(line, purpose, self._action_s, seat.question)
        except PolicyError as error:
            raise _BrokenError(seat.process, error, purpose) from error
        self._under_way[seat.agent] += 1

    def _ask_alone(self, seat: PolicySeat, lane: Lane) -> None:
        """Ask about one lane, whose answer may come any time and holds nobody up."""
        purpose = (seat, [lane.index], [(lane, lane.generation)])
        picture = lane.game.render() if seat.wants_pictures else None
        line, number = seat.question(lane.index, lane.turns[seat.agent], lane.length, picture)
        timeout_s = max(seat.decision_s, self._config.deadlines.action_s)
        try:
            seat.process.post(line, purpose, timeout_s, seat.purpose, number)
        except PolicyError as error:
            raise _BrokenError(seat.process, error, purpose) from error
        self._under_way[seat.agent] += 1

    def _receive(self) -> None:
        """Wait for answers, and take those that have come; now and then see whether one is overdue."""
        awaited = sum(process.is_awaited for process in self._processes.values())
        if not self._paced and not awaited:
            return
        patience = _TICK_S
        if self._paced:
            patience = max(0.0, min(patience, min(lane.due for lane, _ in self._paced) - time.monotonic()))
        # Not if that took the CPU from one of them.
        ready = self._watch.look(self._poll) if 0 < awaited < self._cpus else []
        ready = ready or self._poll.poll(1000 * patience)
        for fd, _ in ready:
            self._take(self._processes[fd])
        now = time.monotonic()
        if not ready or now >= self._look_at:
            self._look_at = now + _TICK_S
            for process in self._processes.values():
                if process.patience() <= 0:
                    self._take(process, late=True)

    def _listen(self) -> None:
        """Watch the output of every policy."""
        self._processes = {seat.process.fd: seat.process for seat in self._asked}
        self._poll = select.poll()
        for fd in self._processes:
            self._poll.register(fd, select.POLLIN)

    def _take(self, process: PolicyProcess, *, late: bool = False) -> None:
        awaited = process.awaited
        try:
            if late:
                process.require_in_time()
                return
            found = process.collect()
        except PolicyError as error:
            raise _BrokenError(process, error, awaited.purpose if awaited is not None else None) from error
        for answer, reply in found:
            self._understand(answer, reply)

    def _understand(self, answer: Answer, reply: dict[str, Any]) -> None:
        seat, asked, entries = answer.purpose
        if asked is not None:
            self._under_way[seat.agent] -= 1
        live = [(lane, row) for row, (lane, born) in enumerate(entries) if lane.is_playing and lane.generation == born]
        if asked is None:
            if reply.get("type") == "error":
                for lane, _ in live:
                    self._fail(lane, seat, PolicyError("raised", str(reply.get("message"))), at_start=True)
            return
        if isinstance(reply.get("report"), dict):
            for lane, _ in live:
                lane.reports[seat.agent] = reply["report"]
        if (said := said_in(reply)) is not None:
            for lane, _ in live:
                lane.said[seat.agent] = said
        try:
            actions = seat.actions(reply, len(entries))
        except PolicyError as error:
            if seat.is_asynchronous and error.kind in {"refused", "spent"}:
                ending = RefusedError if error.kind == "refused" else SpentError
                raise ending(seat.operator, seat.agent, f"operator {seat.operator}: {error}") from error
            if self._is_alone or len(entries) == 1:
                for lane, _ in live:
                    self._fail(lane, seat, error)
            else:
                self._set_apart(lane for lane, _ in live)
            return
        agent = seat.agent
        for lane, row in live:
            try:
                is_complete = lane.decide(agent, actions[row])
            except PolicyError as error:
                self._fail(lane, seat, error)
            else:
                if is_complete:
                    self._move(lane)

    # What goes wrong.

    def _fail(self, lane: Lane, seat: Seat, error: PolicyError, *, at_start: bool = False) -> None:
        """Count the failure of an operator and do what the config says; without a beginning, nobody can play on.

        A policy that dies while another has to move owes no move: started again, it plays on, unless it forfeits.
        """
        agent, rules = seat.agent, self._config.failures
        tried = lane.tried.get(agent, 0)
        lane.tried[agent] = tried + 1
        then = "retry" if tried < rules.retry else rules.then
        if at_start and then != "fail":
            then = "forfeit"
        owes_move = lane.owes_move(agent)
        if then in {"noop", "random_legal"} and not owes_move:
            then = "restart"
        lane.failures.append(
            {
                "agent": agent,
                "operator": seat.operator,
                "kind": error.kind,
                "step": lane.length,
                "message": str(error)[:500],
                "then": then,
            }
        )
        if then in {"forfeit", "fail"}:
            lane.losers.add(agent)
            self._finish(lane, "forfeit" if then == "forfeit" else "failed")
        elif then == "retry" and owes_move:
            self._waiting[agent].append(lane)
        elif owes_move:
            mask = lane.turns[agent].mask
            action = seat.moves.noop(mask) if then == "noop" else seat.moves.random(mask, lane.generator)
            self._decide(lane, agent, action)

    def _set_apart(self, lanes: Iterable[Lane]) -> None:
        """Abandon episodes, to play each again alone."""
        for lane in lanes:
            if lane.is_playing:
                lane.abandon()
                self._ask_no_more(lane)
                self._idle.append(lane)
                self._alone.append(lane.episode)

    def _mend(self, broken: "_BrokenError", lanes: list[Lane]) -> None:
        """Start a policy anew that hangs or has died."""
        self._policies.restart(broken.process)
        self._listen()
        for seat in self._asked:
            if seat.process.name == broken.process.name:
                self._under_way[seat.agent] = 0
        playing = [lane for lane in lanes if lane.is_playing]
        if not self._is_alone:
            for queue in (*self._waiting.values(), self._ready):
                queue.clear()
            self._set_apart(playing)
            return
        seats = [seat for seat in self._asked if seat.process.name == broken.process.name]
        guilty, asked = seats[0], True
        if broken.purpose is not None:
            guilty, asked, _ = broken.purpose
        for lane in playing:
            for seat in seats:
                queue = self._waiting[seat.agent]
                if lane in queue:
                    queue.remove(lane)
                if seat is not guilty and lane.owes_move(seat.agent):
                    queue.append(lane)
            is_last = lane.tried.get(guilty.agent, 0) >= self._config.failures.retry
            self._fail(lane, guilty, broken.error, at_start=asked is None and is_last)
            if lane.is_playing:
                for seat in seats:
                    self._announce(lane, seat)


class _BrokenError(Exception):
    """A policy's process hangs or has died; `purpose` is what it was last asked for."""

    def __init__(self, process: PolicyProcess, error: PolicyError, purpose: Any) -> None:
        self.process = process
        self.error = error
        self.purpose = purpose
        super().__init__(str(error))
