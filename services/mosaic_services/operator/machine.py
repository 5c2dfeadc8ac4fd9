"""The state machine of an experiment: events in, instructions out. No sockets, files or clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mosaic_bus.client.live import is_settled
from mosaic_bus.messages import (
    ExperimentState,
    ExperimentStateName,
    FailureCategory,
    RunStateName,
)
from mosaic_services.experiments.records import read_event, record_line
from mosaic_services.experiments.shards import Slice, cut, missing, shard_spec, without
from mosaic_services.operator import events
from mosaic_services.operator import instructions as todo
from mosaic_services.operator.numerics import Numerics
from mosaic_services.operator.progress import Progress, Shard
from mosaic_services.operator.summary import summarise

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from mosaic_bus.messages import RunState, RunSummary
    from mosaic_services.experiments.records import Records
    from mosaic_services.operator.looking import Decision

__all__ = ["ExperimentMachine"]

# Seconds to wait until the journal of a shard that has ended is stored; that of a lost host may never be.
SETTLE_S = 60.0
# Episodes that are lost this often in a row, with no new record between, are given up.
MOST_FRUITLESS = 5
# After so many such losses each lineup has a shard of its own: the operator of one may be at fault.
_TOGETHER = 2


class ExperimentMachine:
    """Decides about one experiment."""

    def __init__(
        self,
        plan: Mapping[str, Any],
        records: Records,
        progress: Progress,
        new_id: Callable[[], str],
        decide: Callable[[Mapping[str, Any], Mapping[str, int], Records], Decision],
    ) -> None:
        self.plan = plan
        self.records = records
        self.progress = progress
        self.version = 0
        self._new_id = new_id
        self._decide = decide
        self._numerics = Numerics(plan["lineups"], records)
        self._shards = {each.run: each for each in progress.shards}
        self._seen: dict[str, tuple[RunState, RunSummary | None]] = {}
        self._ended_at: dict[str, float] = {}
        self._asking: set[str] = set()
        # How many events each shard had when its records were last asked for.
        self._asked: dict[str, int] = {}
        self._out: list[todo.Instruction] = []

    # ── commands ────────────────────────────────────────────────────────────────────────────────

    def begin(self, now: float) -> list[todo.Instruction]:
        """Play what is missing."""
        self._out = []
        self.progress.started_at = now
        if (said := self._over_budget(now)) is not None and self._missing():
            self._end(ExperimentStateName.STOPPED, said, now)
            self._save()
            return self._out
        self._submit_missing()
        self._advance(now)
        self._save()
        return self._out

    def resume(self) -> list[todo.Instruction]:
        """Go on after a restart: submit again what the scheduler may not have."""
        self._out = []
        for shard in self.progress.shards:
            if not shard.acknowledged and not shard.settled:
                self._out.append(todo.Submit(shard.run, self._spec(shard)))
        if self.progress.state is ExperimentStateName.STOPPING:
            self._cancel_all()
        self.version += 1
        return self._out

    def handle(self, event: events.Event) -> list[todo.Instruction]:
        """Take in an event; return the instructions to carry out, in order."""
        self._out = []
        if self.progress.state.final:
            return self._out
        match event:
            case events.Acknowledged(run=run):
                self._acknowledged(run)
            case events.Refused(run=run, reason=reason):
                self._refused(run, reason, event.now)
            case events.RunSeen(state=state, summary=summary):
                self._seen_run(state, summary, event.now)
            case events.Collected():
                self._collected(event)
            case events.StopAsked(reason=reason):
                self._stop(reason, event.now)
            case events.Tick():
                self._tick(event.now)
            case _:
                raise TypeError(f"no such event: {event!r}")
        return self._out

    # ── shards ──────────────────────────────────────────────────────────────────────────────────

    def _acknowledged(self, run: str) -> None:
        shard = self._shards.get(run)
        if shard is not None and not shard.acknowledged:
            shard.acknowledged = True
            shard.state = RunStateName.QUEUED
            self._save()

    def _refused(self, run: str, reason: str, now: float) -> None:
        shard = self._shards.get(run)
        if shard is not None and not shard.settled and not shard.acknowledged:
            shard.state, shard.reason = "refused", reason
            self._settle(shard, FailureCategory.CONFIGURATION, now)

    def _seen_run(self, state: RunState, summary: RunSummary | None, now: float) -> None:
        shard = self._shards.get(state.run)
        if shard is None or shard.settled:
            return
        self._seen[state.run] = (state, summary)
        shard.acknowledged = True
        if state.attempt != shard.attempt:
            shard.attempt, shard.position = state.attempt, 0
            self._asked.pop(state.run, None)
        if (shard.state, shard.host, shard.reason) != (state.state, state.host, state.reason):
            shard.state, shard.host, shard.reason = state.state, state.host, state.reason
            self.version += 1
        if state.state.final:
            self._ended_at.setdefault(state.run, now)
        self._look_at(shard, now)

    def _look_at(self, shard: Shard, now: float) -> None:
        """Ask for the records of a shard if there may be new ones."""
        state, summary = self._seen.get(shard.run, (None, None))
        if state is None or shard.settled or shard.run in self._asking:
            return
        if state.state.final and state.attempt == 0:
            self._settle(shard, state.category, now)
            return
        whole = state.state.final and (
            is_settled(state, summary) or now - self._ended_at.get(shard.run, now) > SETTLE_S
        )
        written = summary.events if summary is not None and summary.attempt == shard.attempt else 0
        if whole or written > self._asked.get(shard.run, 0):
            self._asking.add(shard.run)
            self._asked[shard.run] = written
            self._out.append(todo.Collect(shard.run, shard.attempt, shard.position, whole))

    def _collected(self, event: events.Collected) -> None:
        self._asking.discard(event.run)
        shard = self._shards.get(event.run)
        if shard is None or shard.settled:
            return
        if event.attempt == shard.attempt:
            self._take(shard, event)
        if event.attempt == shard.attempt and event.whole:
            state, _ = self._seen[event.run]
            self._settle(shard, _category(state), event.now)
        else:
            self._look_at(shard, event.now)
        self._keep_to_budget(event.now)

    def _take(self, shard: Shard, event: events.Collected) -> None:
        """Keep the records that are new."""
        fresh = []
        for line in event.lines:
            record = read_event(line)
            if record is None or not self._plays(shard, record) or not self._fits(shard, record):
                continue
            written = record_line(record)
            match self.records.add(record, written):
                case "new":
                    fresh.append(written)
                    shard.done += 1
                case "conflict":
                    self.progress.conflicts += 1
        shard.position = event.position
        if fresh:
            self._out.append(todo.Append(tuple(fresh)))
            self._save()

    def _fits(self, shard: Shard, record: dict[str, Any]) -> bool:
        """Whether a record has the numerics of those that are there; if not, its host plays no more of this.

        The first record of an exact experiment sets the reference. A host of which a record was taken is not sent
        away: if its numbers change, nobody knows which are right, and the experiment fails at its end.
        """
        host, progress = shard.host, self.progress
        if not self.plan["exact"] or host is None:
            return True
        if host in progress.excluded:
            return False
        differing = self._numerics.differing(record)
        if not differing or host in progress.trusted:
            if host not in progress.trusted:
                progress.trusted.append(host)
            return True
        progress.excluded[host] = ", ".join(differing)
        said = f"host {host} computes other numbers ({progress.excluded[host]}): its episodes are played elsewhere"
        progress.notes.append(said)
        for each in self.progress.shards:
            if each.host == host and not each.settled:
                self._out.append(todo.Cancel(each.run, said))
        self._save()
        return False

    @staticmethod
    def _plays(shard: Shard, record: dict[str, Any]) -> bool:
        return any(
            lineup == record["lineup"] and first <= record["episode"] < last for lineup, first, last in shard.play
        )

    def _settle(self, shard: Shard, category: FailureCategory | None, now: float) -> None:
        """Decide what becomes of the episodes that a shard has not played."""
        shard.settled = True
        left = self._left(shard)
        if left and self.progress.state is ExperimentStateName.RUNNING:
            self._play_again(shard, left, category)
        self._advance(now)
        self._save()

    def _left(self, shard: Shard) -> list[Slice]:
        return [each for piece in shard.slices for each in without(piece, self.records.done.get(piece.lineup, ()))]

    def _play_again(self, shard: Shard, left: list[Slice], category: FailureCategory | None) -> None:
        left = [each for each in left if each.lineup not in self.progress.given_up]
        lineups = list(dict.fromkeys(each.lineup for each in left))
        if not left:
            return
        if shard.host in self.progress.excluded:
            self._add(left, 0)
        elif shard.state == RunStateName.CANCELLED:
            self._give_up(lineups, f"shard {shard.number} was cancelled: {shard.reason}")
        elif category is FailureCategory.INFRASTRUCTURE:
            fruitless = 0 if shard.done else shard.fruitless + 1
            if fruitless >= MOST_FRUITLESS:
                self._give_up(lineups, f"lost {fruitless} times in a row, last: {shard.reason}")
            else:
                self.progress.lost += 1
                for piece in self._apart(left) if fruitless >= _TOGETHER else [left]:
                    self._add(piece, fruitless)
        elif len(lineups) > 1:
            # One of them is at fault: alone, each shows whether it is the one.
            for piece in self._apart(left):
                self._add(piece, 0)
        elif shard.done:
            self._add(left, 0)
        else:
            self._give_up(lineups, shard.reason)

    @staticmethod
    def _apart(left: list[Slice]) -> list[list[Slice]]:
        """Return the slices of each lineup."""
        return [
            [each for each in left if each.lineup == lineup] for lineup in dict.fromkeys(each.lineup for each in left)
        ]

    def _give_up(self, lineups: list[str], reason: str) -> None:
        for lineup in lineups:
            self.progress.given_up.setdefault(lineup, reason)

    def _add(self, play: Sequence[Slice], fruitless: int) -> None:
        number = len(self.progress.shards) + 1
        pieces = [(each.lineup, each.first, each.last) for each in play]
        shard = Shard(run=self._new_id(), number=number, play=pieces, fruitless=fruitless)
        self.progress.shards.append(shard)
        self._shards[shard.run] = shard
        self._save()
        self._out.append(todo.Submit(shard.run, self._spec(shard)))

    def _spec(self, shard: Shard) -> Any:
        name = f"{self.plan['name']}-shard{shard.number}"
        elsewhere = [f"!host:{host}" for host in self.progress.excluded]
        return shard_spec(self.plan, shard.slices, name, [*self.progress.requires, *elsewhere])

    # ── the experiment ──────────────────────────────────────────────────────────────────────────

    def _submit_missing(self) -> None:
        for play in cut(self._missing(), self.progress.at_once):
            self._add(play, 0)

    def _playable(self) -> dict[str, int]:
        """How many episodes are wanted of each lineup that is not given up."""
        return {name: count for name, count in self.progress.wanted.items() if name not in self.progress.given_up}

    def _missing(self) -> list[Slice]:
        return missing(self._playable(), self.records.done)

    def _advance(self, now: float) -> None:
        """End the experiment, or go on, once no shard is open."""
        progress = self.progress
        if progress.state.final or not all(each.settled for each in progress.shards):
            return
        if progress.state is ExperimentStateName.STOPPING:
            self._end(ExperimentStateName.STOPPED, progress.reason, now)
            return
        while not self._missing():
            playable = self._playable()
            if self.plan["until"] is None or not playable:
                break
            decision = self._decide(self.plan, playable, self.records)
            progress.look = decision.reason
            progress.looks.append(decision.reason)
            if not decision.wanted:
                break
            progress.wanted |= decision.wanted
        if self._missing():
            self._submit_missing()
        elif progress.given_up:
            said = "; ".join(f"{lineup}: {reason}" for lineup, reason in progress.given_up.items())
            self._end(ExperimentStateName.FAILED, f"some episodes cannot be played: {said}", now)
        elif self.plan["exact"] and (differing := self._numerics.mixed()):
            self._end(ExperimentStateName.FAILED, f"hosts compute different numbers: {', '.join(differing)}", now)
        else:
            self._end(ExperimentStateName.FINISHED, progress.look, now)

    def _stop(self, reason: str, now: float) -> None:
        if self.progress.state is ExperimentStateName.RUNNING:
            self.progress.state, self.progress.reason = ExperimentStateName.STOPPING, reason
            self._cancel_all()
            self._advance(now)
            self._save()

    def _cancel_all(self) -> None:
        for shard in self.progress.shards:
            if not shard.settled:
                self._out.append(todo.Cancel(shard.run, f"the experiment stops: {self.progress.reason}"))

    def _end(self, state: ExperimentStateName, reason: str, now: float) -> None:
        self.progress.state, self.progress.reason, self.progress.ended_at = state, reason, now
        self._out.append(todo.Finish())

    def _tick(self, now: float) -> None:
        for shard in self.progress.shards:
            if not shard.settled:
                self._look_at(shard, now)
        self._keep_to_budget(now)

    def _keep_to_budget(self, now: float) -> None:
        """Stop once the budget is used up, unless every episode is there and only ends of shards are waited for."""
        if (said := self._over_budget(now)) is not None and self._missing():
            self._stop(said, now)

    def _over_budget(self, now: float) -> str | None:
        """What is used up. What a plan of an older version does not name has no limit."""
        budget = self.plan["budget"]
        used = {
            "wall_s": (now - self.progress.started_at, "s"),
            "steps": (self.records.steps, "steps"),
            "episodes": (len(self.records), "episodes"),
        }
        for name, (found, unit) in used.items():
            limit = budget.get(name)
            if limit is not None and found >= limit:
                return f"its budget of {limit:,g} {unit} is used up"
        return None

    def _save(self) -> None:
        self.version += 1
        self._out = [each for each in self._out if not isinstance(each, todo.Save)]
        # Before anything is sent that a crash must not forget.
        place = next((at for at, each in enumerate(self._out) if not isinstance(each, todo.Append)), len(self._out))
        self._out.insert(place, todo.Save())

    # ── for readers ─────────────────────────────────────────────────────────────────────────────

    def render(self, folder: str, version: int) -> ExperimentState:
        """The experiment as it is now."""
        return summarise(self.plan["name"], self.progress, self.records, folder, version)


def _category(state: RunState) -> FailureCategory | None:
    """Whose fault it is that episodes have no record: infrastructure's if their host or only their journal is lost."""
    lost = state.state in {RunStateName.LOST, RunStateName.SUCCEEDED}
    return FailureCategory.INFRASTRUCTURE if lost else state.category
