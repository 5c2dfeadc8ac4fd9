"""The scheduler's shell: carries events from the bus to the state machine, and its instructions out.

What one turn of the event loop decides is written in one transaction; only then is anything sent, published or
answered, so that nobody ever hears of what a crash could undo. A stop alone is sent at once: to stop twice is harmless.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from mosaic_bus import topics
from mosaic_bus.commands import (
    Ack,
    Cancel,
    CancelGroup,
    Check,
    Checkpoints,
    CheckResult,
    Command,
    Delete,
    DeleteResult,
    Drain,
    Forget,
    GroupList,
    Groups,
    HostList,
    Hosts,
    PauseQueue,
    Place,
    Prioritise,
    Rerun,
    RunDetail,
    RunList,
    Runs,
    SavedCheckpoint,
    Show,
    Snapshot,
    SnapshotResult,
    Stop,
    Submit,
    SubmitMany,
    Summaries,
    Why,
    WhyResult,
)
from mosaic_bus.errors import BusError, CommandRefusedError
from mosaic_bus.logs import FirstTime, Logger
from mosaic_bus.messages import HostState, Model
from mosaic_bus.refusals import RefusalCode
from mosaic_bus.service import Service, explain
from mosaic_services.scheduler import deletion, events, queries, requests, why
from mosaic_services.scheduler import instructions as todo
from mosaic_services.scheduler.errors import StoreError
from mosaic_services.scheduler.machine import Machine
from mosaic_services.scheduler.naming import find_run
from mosaic_services.scheduler.store import Store
from mosaic_services.scheduler.writer import Turn, Writer

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from mosaic_bus.client import Subscription
    from mosaic_bus.messages import RunState
    from mosaic_services.home import StackHome
    from mosaic_services.scheduler.model import Run
    from mosaic_services.settings.model import Settings

__all__ = ["SchedulerService"]

Result = TypeVar("Result", bound=Model)

_log = Logger()

_SUBMISSIONS: tuple[type[Command[Any]], ...] = (Submit, SubmitMany, Rerun)
_CHANGES: tuple[type[Command[Ack]], ...] = (Cancel, CancelGroup, Prioritise, PauseQueue, Drain)

_TICK_S = 0.5
# Seconds to wait for an answer. Just under REPEAT_S of the ledger, which then sends the command again.
_ANSWER_S = 1.9
# If our own heartbeat does not come back for this many seconds, the bus is unreachable.
_DEAF_AFTER_S = 4.0
TELEMETRY = "telemetry"
# Versions of states start above all those of the previous epoch.
_EPOCH_BITS = 32


class SchedulerService(Service):
    """Stores runs, places them on hosts and tracks them to their end."""

    home: StackHome

    def __init__(self, home: StackHome, bus_address: str | None, settings: Settings) -> None:
        home.create()
        self.lock = home.lock("scheduler")
        self.store = Store(home.scheduler_store)
        super().__init__("scheduler", home, bus_address, heartbeat_s=settings.services.heartbeat_s)
        self.machine = Machine(
            self.store.load(), _now(), settings.scheduler, self.store.settings(), self.epoch << _EPOCH_BITS
        )
        self.writer = Writer(self.store, self._release, self._store_failed)
        self._heard_at = time.monotonic()
        self._asking: set[tuple[str, str, str, int]] = set()
        self._unpublished: dict[str, RunState] = {}
        self._first_time = FirstTime()
        self._counts: dict[str, int | float] = {"placed": 0, "bad_reports": 0}
        for submission in _SUBMISSIONS:
            self.handle(submission, self._submit)
        for change in _CHANGES:
            self.handle(change, self._change)
        self.handle(Delete, self._on_delete)
        self.handle(Check, self._on_check)
        self.handle(Runs, self._on_runs)
        self.handle(Groups, self._on_groups)
        self.handle(Show, self._on_show)
        self.handle(Why, self._on_why)
        self.handle(Hosts, self._on_hosts)
        self.handle(Snapshot, self._on_snapshot)

    async def start(self) -> None:
        """Subscribe to hosts and start to tick."""
        reports = self.bus.subscribe(topics.HOST_STATES)
        echo = self.bus.subscribe(topics.service_state(self.name), max_queue=1)
        await self.bus.synced()
        self._heard_at = time.monotonic()
        self.spawn(self.writer.work(), "writer")
        self.spawn(self._listen(reports), "reports")
        self.spawn(self._echo(echo), "echo")
        self.spawn(self._tick(), "tick")

    async def finish(self) -> None:
        """Write what is unsaved."""
        with contextlib.suppress(StoreError):
            await self.writer.flush()

    def counters(self) -> dict[str, int | float]:
        """Counters of runs by state, hosts and commits."""
        ledger = self.machine.ledger
        hosts = sum(host.state is not None and not host.silent for host in ledger.hosts.values())
        return {
            "submitted": self.writer.submitted,
            **self._counts,
            **{f"runs_{state}": count for state, count in queries.state_counts(ledger).items()},
            "hosts": hosts,
            "commits": self.writer.commits,
            "unsaved": len(self.writer.unsaved.runs),
        }

    def details(self) -> dict[str, Any]:
        """The store, and settings."""
        return {"store": str(self.store.path), "lost_after_s": self.machine.tuning.lost_after_s}

    # ── events in ───────────────────────────────────────────────────────────────────────────────

    def feed(self, event: events.Event) -> None:
        """Pass an event to the machine and carry out its instructions."""
        self._apply(self.machine.handle(event))

    def _execute(self, command: Command[Result]) -> tuple[Result, Turn]:
        """Pass a command to the machine; return its result, and the turn that saves it."""
        result, decided = self.machine.execute(command, _now())
        self._apply(decided)
        return result, self.writer.turn

    def _apply(self, decided: list[todo.Instruction]) -> None:
        for instruction in decided:
            if isinstance(instruction, todo.Send) and isinstance(instruction.command, Stop):
                self._ask(instruction.host, instruction.command)
            else:
                self.writer.add(instruction)

    async def _listen(self, reports: Subscription) -> None:
        async for message in reports:
            try:
                state = HostState.model_validate(message.payload)
            except ValidationError as error:
                self._complain(message.header.src, explain(error))
                continue
            if message.topic != topics.host_state(state.host):
                self._complain(message.header.src, f"host {state.host!r} reported on {message.topic}")
                continue
            try:
                self.feed(events.HostReported(_now(), state))
            except Exception as error:
                # The host repeats its report, so it must not end the scheduler. Save what was decided before the error.
                self._complain(state.host, repr(error), error)
                self._apply(self.machine.ledger.out)

    def _complain(self, source: str, reason: str, error: Exception | None = None) -> None:
        self._counts["bad_reports"] += 1
        if self._first_time(f"report {source}"):
            _log.warning("bad report", source=source, reason=reason, exc_info=error)

    async def _echo(self, heartbeats: Subscription) -> None:
        async for _ in heartbeats:
            self._heard_at = time.monotonic()

    async def _tick(self) -> None:
        while True:
            deaf = time.monotonic() - self._heard_at > _DEAF_AFTER_S
            self.feed(events.Tick(_now(), deaf))
            for state in list(self._unpublished.values()):
                if not self._publish(state):
                    break
            self.writer.retry()
            self._say_how_it_is()
            await asyncio.sleep(_TICK_S)

    # ── instructions out ────────────────────────────────────────────────────────────────────────

    def _release(self, instruction: todo.Instruction) -> None:
        """Carry out an instruction once the saves before it are on disk."""
        match instruction:
            case todo.Publish(state=state):
                self._publish(state)
            case todo.Send(host=host, command=command):
                current = self.machine.ledger.open_attempt(host, command.run, command.attempt)
                if current is not None or not isinstance(command, Place):
                    self._ask(host, command)
            case todo.FetchDescription():
                self.spawn(self._describe(instruction), "describe")
            case todo.FetchCheckpoints(run=run):
                self._once(("checkpoints", TELEMETRY, run, 0), self._find_checkpoints(run))
            case _:
                raise TypeError(f"no such instruction: {instruction!r}")

    def _publish(self, state: RunState) -> bool:
        """Publish now, or with the next tick if the send queue is full."""
        sent = self.bus.publish(topics.run_state(state.run), state)
        if sent:
            self._unpublished.pop(state.run, None)
        else:
            self._unpublished[state.run] = state
        return sent

    def _ask(self, host: str, command: Place | Stop | Forget) -> None:
        self._once((command.name, host, command.run, command.attempt), self._ask_host(host, command))

    def _once(self, key: tuple[str, str, str, int], question: Coroutine[Any, Any, None]) -> None:
        """Ask, unless the same request is still pending."""
        if key in self._asking:
            question.close()
            return
        self._asking.add(key)

        async def ask() -> None:
            try:
                await question
            finally:
                self._asking.discard(key)

        self.spawn(ask(), key[0])

    async def _ask_host(self, host: str, command: Place | Stop | Forget) -> None:
        refusal: CommandRefusedError | None = None
        try:
            await self.bus.request(topics.supervisor(host), command, timeout=_ANSWER_S)
        except CommandRefusedError as error:
            refusal = error
            _log.warning("refused by host", host=host, command=command.name, run=command.run, reason=error.message)
        except BusError:
            return
        if not isinstance(command, Forget):
            self._counts["placed"] += isinstance(command, Place) and refusal is None
            self.feed(events.Answered(_now(), host, command, refusal))

    async def _describe(self, wanted: todo.FetchDescription) -> None:
        host, worker, profile = wanted.host, wanted.command.worker, wanted.command.profile
        try:
            found = await self.bus.request(topics.supervisor(host), wanted.command)
        except BusError as error:
            _log.warning("no description", host=host, worker=worker, profile=profile, reason=str(error))
            return
        try:
            self.feed(events.Described(_now(), wanted.fingerprint, found))
        except Exception:
            # A worker's description must never end the scheduler.
            if self._first_time(f"description {worker}/{profile}/{wanted.fingerprint}"):
                _log.exception("unusable description", host=host, worker=worker, profile=profile)
        self._tell_broken_schemas()

    async def _find_checkpoints(self, run: str) -> None:
        stored, saved, problem = 0, list[SavedCheckpoint](), ""
        try:
            # Ask whether all is stored before asking for the checkpoints: otherwise the last one could be missed.
            told = await self.bus.request(TELEMETRY, Summaries(runs=[run]), timeout=_ANSWER_S)
            stored = max((each.attempt for each in told.summaries if each.complete), default=0)
            saved = (await self.bus.request(TELEMETRY, Checkpoints(run=run), timeout=_ANSWER_S)).checkpoints
        except CommandRefusedError as error:
            problem = "" if error.code == "unknown_run" else error.message
        except BusError as error:
            problem = str(error)
        self.feed(events.CheckpointsKnown(_now(), run, tuple(saved), stored, problem))

    def _tell_broken_schemas(self) -> None:
        for (worker, profile, fingerprint), schema in self.machine.ledger.schemas.items():
            if schema.broken and self._first_time(f"schema {worker}/{profile}/{fingerprint}"):
                _log.warning("unusable config schema", worker=worker, profile=profile, reason=schema.broken)

    def _store_failed(self, failure: str, submitted: list[str]) -> None:
        """Report it, and withdraw submissions that were not acknowledged."""
        self._say_how_it_is()
        if failure:
            for run in submitted:
                self.feed(events.Withdrawn(_now(), run))

    def _say_how_it_is(self) -> None:
        now = time.monotonic()
        conflicts = [host.conflict(now) for host in self.machine.ledger.hosts.values()]
        wrong = [text for text in (self.writer.failure, *conflicts) if text]
        self.set_status("degraded" if wrong else "ok", "; ".join(wrong))

    # ── commands ────────────────────────────────────────────────────────────────────────────────

    async def _submit(self, command: Command[Result]) -> Result:
        """Submit runs; answer once they are on disk, refuse them if they cannot be written."""
        known = self.machine.ledger.runs
        if self.writer.failure and not all(run in known for run in _ids(command)):
            raise self._unavailable()
        answer, turn = self._execute(command)
        # Some errors in a schema show only when a config is checked.
        self._tell_broken_schemas()
        # A repeated command succeeds or fails with its first arrival, which may belong to an earlier turn.
        taken = [known[each.run] for each in getattr(answer, "runs", [answer])]
        await self.writer.settled(turn)
        if any(known.get(run.id) is not run for run in taken):
            raise self._unavailable()
        return answer

    def _unavailable(self) -> CommandRefusedError:
        failure = self.writer.failure or "the store could not be written a moment ago"
        return CommandRefusedError(RefusalCode.STORE_UNAVAILABLE, f"nothing can be submitted now: {failure}")

    async def _change(self, command: Command[Ack]) -> Ack:
        """Execute a command; acknowledge it once it is on disk, or say that it could not be saved."""
        answer, turn = self._execute(command)
        await self.writer.settled(turn)
        return Ack(note=f"{answer.note} (not yet saved: {self.writer.failure})") if self.writer.failure else answer

    async def _on_delete(self, command: Delete) -> DeleteResult:
        self.machine.ledger.begin(_now())
        runs, kept = deletion.choose(self.machine.ledger, command)
        answer = await deletion.delete(self.bus, command, runs, kept, self._forget)
        await self.writer.settled(self.writer.turn)
        return answer

    def _forget(self, run: Run) -> None:
        self.feed(events.Deleted(_now(), run.id))

    async def _on_check(self, command: Check) -> CheckResult:
        self.machine.ledger.begin(_now())
        return requests.check(self.machine.ledger, command.spec)

    async def _on_runs(self, command: Runs) -> RunList:
        return queries.run_list(self.machine.ledger, command, time.monotonic())

    async def _on_groups(self, command: Groups) -> GroupList:
        return queries.group_list(self.machine.ledger, command.group, command.limit)

    async def _on_why(self, command: Why) -> WhyResult:
        ledger = self.machine.ledger
        run = find_run(ledger.runs, command.run)
        await self.writer.settled(self.writer.turn)
        return why.explain(ledger, run, self.writer.decisions(run.id), time.monotonic())

    async def _on_show(self, command: Show) -> RunDetail:
        ledger = self.machine.ledger
        run = find_run(ledger.runs, command.run)
        await self.writer.settled(self.writer.turn)
        return RunDetail(
            run=ledger.render(run, time.monotonic()),
            spec=run.spec,
            attempts=[queries.attempt_detail(run, attempt) for attempt in run.attempts],
            decisions=self.writer.decisions(run.id),
        )

    async def _on_hosts(self, _: Hosts) -> HostList:
        return queries.host_list(self.machine.ledger, time.monotonic())

    async def _on_snapshot(self, command: Snapshot) -> SnapshotResult:
        return queries.snapshot(self.machine.ledger, command, time.monotonic())


def _ids(command: Command[Any]) -> list[str]:
    """The ids that a client chose for its runs; those of a rerun are not known beforehand."""
    match command:
        case Submit():
            return [command.run]
        case SubmitMany():
            return [each.run for each in command.runs]
    return [""]


def _now() -> events.Instant:
    return events.Instant(time.monotonic(), time.time())
