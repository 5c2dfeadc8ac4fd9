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
from pydantic_core import PydanticSerializationError

from mosaic_bus import topics
from mosaic_bus.commands import (
    Ack,
    Cancel,
    CancelGroup,
    Command,
    Describe,
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
    Show,
    Snapshot,
    SnapshotResult,
    Stop,
    Submit,
    SubmitMany,
    Submitted,
    SubmittedMany,
    Why,
    WhyResult,
)
from mosaic_bus.errors import BusError, CommandRefusedError
from mosaic_bus.logs import Logger
from mosaic_bus.messages import HostState, Model, RunSpec
from mosaic_bus.service import Service, explain
from mosaic_services.scheduler import events, queries, why
from mosaic_services.scheduler import instructions as todo
from mosaic_services.scheduler.errors import StoreError
from mosaic_services.scheduler.machine import Machine
from mosaic_services.scheduler.naming import find_run
from mosaic_services.scheduler.store import Store
from mosaic_services.scheduler.writer import Turn, Writer

if TYPE_CHECKING:
    from mosaic_bus.client import Subscription
    from mosaic_bus.messages import RunState
    from mosaic_services.home import StackHome

__all__ = ["SchedulerService"]

Taken = TypeVar("Taken", Submitted, SubmittedMany)

_log = Logger()

_TICK_S = 0.5
# How long to wait for a host's answer; the machine repeats what a report has not confirmed.
_ANSWER_S = 1.9
# If not even our own heartbeat came back for this long, the bus is away and hosts cannot be heard.
_DEAF_AFTER_S = 4.0
_COMPLAINTS_REMEMBERED = 1000
# Versions of states start anew above all those of the epoch before.
_EPOCH_BITS = 32


class SchedulerService(Service):
    """Stores runs, places them on hosts and follows them to their end."""

    home: StackHome

    def __init__(self, home: StackHome, bus_address: str | None, lost_after_s: float) -> None:
        home.create()
        self.lock = home.lock("scheduler")
        self.store = Store(home.scheduler_store)
        super().__init__("scheduler", home, bus_address)
        self.machine = Machine(
            self.store.load(), _now(), lost_after_s, self.store.settings(), self.epoch << _EPOCH_BITS
        )
        self.writer = Writer(self.store, self._release, self._store_failed)
        self._heard_at = time.monotonic()
        self._asking: set[tuple[str, str, str, int]] = set()
        self._unpublished: dict[str, RunState] = {}
        # What has been complained about, oldest first: once each, as long as it is remembered.
        self._complained: dict[str, None] = {}
        self._counts: dict[str, int | float] = {"submitted": 0, "placed": 0, "bad_reports": 0}
        self.handle(Submit, self._on_submit)
        self.handle(SubmitMany, self._on_submit_many)
        self.handle(Rerun, self._on_rerun)
        self.handle(Cancel, self._on_cancel)
        self.handle(CancelGroup, self._on_cancel_group)
        self.handle(Prioritise, self._on_prioritise)
        self.handle(PauseQueue, self._on_pause_queue)
        self.handle(Drain, self._on_drain)
        self.handle(Runs, self._on_runs)
        self.handle(Groups, self._on_groups)
        self.handle(Show, self._on_show)
        self.handle(Why, self._on_why)
        self.handle(Hosts, self._on_hosts)
        self.handle(Snapshot, self._on_snapshot)

    async def start(self) -> None:
        """Listen to hosts, and let time pass."""
        reports = self.bus.subscribe(topics.HOST_STATES)
        echo = self.bus.subscribe(topics.service_state(self.name), max_queue=1)
        await self.bus.synced()
        self._heard_at = time.monotonic()
        self.spawn(self.writer.work(), "writer")
        self.spawn(self._listen(reports), "reports")
        self.spawn(self._echo(echo), "echo")
        self.spawn(self._tick(), "tick")

    async def finish(self) -> None:
        """Write what is not yet written."""
        with contextlib.suppress(StoreError):
            await self.writer.flush()

    def counters(self) -> dict[str, int | float]:
        """Runs by state, and what happened to them."""
        ledger = self.machine.ledger
        hosts = sum(host.state is not None and not host.silent for host in ledger.hosts.values())
        return {
            **self._counts,
            **queries.state_counts(ledger),
            "hosts": hosts,
            "commits": self.writer.commits,
            "unsaved": len(self.writer.unsaved.runs),
        }

    def details(self) -> dict[str, Any]:
        """Where the store is, and the settings."""
        return {"store": str(self.store.path), "lost_after_s": self.machine.lost_after_s}

    # ── events in ───────────────────────────────────────────────────────────────────────────────

    def feed(self, event: events.Event) -> tuple[Model | None, Turn]:
        """Give an event to the machine; return the answer if it was a command, and the turn that saves it."""
        answer: Model | None = None
        new: tuple[str, ...] = ()
        for instruction in self.machine.handle(event):
            match instruction:
                case todo.Refuse(code=code, message=message, details=details):
                    raise CommandRefusedError(code, message, details)
                case todo.Answer(result=result, new=made):
                    answer, new = result, made
                case todo.SendStop(host=host, run=run, attempt=attempt, reason=reason):
                    self._ask(host, Stop(run=run, attempt=attempt, reason=reason), run, attempt)
                case _:
                    self.writer.add(instruction)
        self.writer.turn.submitted += new
        self._counts["submitted"] += len(new)
        return answer, self.writer.turn

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
                # Its host repeats it, so it must not end us. What was decided until then is in memory: save that.
                self._complain(state.host, repr(error), error)
                for decided in self.machine.ledger.out:
                    if not isinstance(decided, todo.SendStop):
                        self.writer.add(decided)

    def _complain(self, source: str, reason: str, error: Exception | None = None) -> None:
        self._counts["bad_reports"] += 1
        if self._first_time(f"report {source}"):
            _log.warning("bad report", source=source, reason=reason, exc_info=error)

    def _first_time(self, complaint: str) -> bool:
        if complaint in self._complained:
            return False
        self._complained[complaint] = None
        if len(self._complained) > _COMPLAINTS_REMEMBERED:
            del self._complained[next(iter(self._complained))]
        return True

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
        """Carry out an instruction whose saves are on disk."""
        match instruction:
            case todo.Publish(state=state):
                self._publish(state)
            case todo.SendPlace(placed=placed, name=name, spec=spec):
                if self.machine.ledger.open_attempt(placed.host, placed.run, placed.number):
                    place = Place(
                        run=placed.run,
                        attempt=placed.number,
                        run_name=name,
                        spec=spec,
                        gpus=placed.gpus,
                        resume=placed.resume,
                    )
                    self._ask(placed.host, place, placed.run, placed.number)
            case todo.SendForget(host=host, run=run, attempt=attempt):
                self._ask(host, Forget(run=run, attempt=attempt), run, attempt)
            case todo.FetchDescription(host=host, worker=worker, profile=profile, fingerprint=fingerprint):
                self.spawn(self._describe(host, worker, profile, fingerprint), "describe")
            case _:
                raise TypeError(f"no such instruction: {instruction!r}")

    def _publish(self, state: RunState) -> bool:
        """Publish now, or with the next tick if the bus has no room."""
        sent = self.bus.publish(topics.run_state(state.run), state)
        if sent:
            self._unpublished.pop(state.run, None)
        else:
            self._unpublished[state.run] = state
        return sent

    def _ask(self, host: str, command: Command[Ack], run: str, attempt: int) -> None:
        key = (command.name, host, run, attempt)
        if key not in self._asking:
            self._asking.add(key)
            self.spawn(self._ask_host(host, command, key), command.name)

    async def _ask_host(self, host: str, command: Command[Ack], key: tuple[str, str, str, int]) -> None:
        _, _, run, attempt = key
        try:
            await self.bus.request(topics.supervisor(host), command, timeout=_ANSWER_S)
        except CommandRefusedError as error:
            _log.warning("refused by host", host=host, command=command.name, run=run, reason=error.message)
            if isinstance(command, Place):
                self.feed(events.PlaceRefused(_now(), host, run, attempt, error.code, error.message))
        except BusError:
            return
        else:
            if isinstance(command, Place):
                self._counts["placed"] += 1
                self.feed(events.PlaceAcknowledged(_now(), host, run, attempt))
            elif isinstance(command, Stop):
                self.feed(events.StopAcknowledged(_now(), host, run, attempt))
        finally:
            self._asking.discard(key)

    async def _describe(self, host: str, worker: str, profile: str, fingerprint: str) -> None:
        try:
            found = await self.bus.request(topics.supervisor(host), Describe(worker=worker, profile=profile))
        except BusError as error:
            _log.warning("no description", host=host, worker=worker, profile=profile, reason=str(error))
            return
        try:
            self.feed(events.DescriptionKnown(_now(), worker, profile, fingerprint, found.config_schema))
        except Exception:
            # What a worker says of itself must never end the scheduler.
            if self._first_time(f"description {worker}/{profile}/{fingerprint}"):
                _log.exception("unusable description", host=host, worker=worker, profile=profile)
        self._tell_broken_schemas()

    def _tell_broken_schemas(self) -> None:
        for (worker, profile, fingerprint), schema in self.machine.ledger.schemas.items():
            if schema.broken and self._first_time(f"schema {worker}/{profile}/{fingerprint}"):
                _log.warning("unusable config schema", worker=worker, profile=profile, reason=schema.broken)

    def _store_failed(self, failure: str, submitted: list[str]) -> None:
        """Say so; forget submissions that nobody has been promised."""
        self._say_how_it_is()
        if failure:
            self._counts["submitted"] -= len(submitted)
            for run in submitted:
                self.feed(events.Withdrawn(_now(), run))

    def _say_how_it_is(self) -> None:
        now = time.monotonic()
        conflicts = [host.conflict(now) for host in self.machine.ledger.hosts.values()]
        wrong = [text for text in (self.writer.failure, *conflicts) if text]
        self.set_status("degraded" if wrong else "ok", "; ".join(wrong))

    # ── commands ────────────────────────────────────────────────────────────────────────────────

    async def _on_submit(self, command: Submit) -> Submitted:
        spec = _as_stored(command.spec)
        return await self._take([command.run], events.Submitted(_now(), command.run, spec), Submitted)

    async def _on_submit_many(self, command: SubmitMany) -> SubmittedMany:
        runs = {each.run: _as_stored(each.spec) for each in command.runs}
        if len(runs) < len(command.runs):
            raise CommandRefusedError("id_reused", "two runs of this command have the same id")
        return await self._take(list(runs), events.SubmittedMany(_now(), tuple(runs.items())), SubmittedMany)

    async def _on_rerun(self, command: Rerun) -> SubmittedMany:
        event = events.RerunRequested(_now(), command.request, command.run, command.group)
        return await self._take([], event, SubmittedMany)

    async def _take(self, ids: list[str], event: events.Event, kind: type[Taken]) -> Taken:
        """Feed a submission; answer once it is on disk, and refuse it if it cannot be written."""
        known = self.machine.ledger.runs
        if self.writer.failure and not (ids and all(run in known for run in ids)):
            raise self._unavailable()
        answer, turn = self.feed(event)
        # Some flaws of a schema show only when a configuration is checked.
        self._tell_broken_schemas()
        # A command that is repeated stands or falls with its first arrival, which may belong to an earlier turn.
        taken = [known[each.run] for each in getattr(answer, "runs", [answer])]
        await self.writer.settled(turn)
        if not isinstance(answer, kind) or any(known.get(run.id) is not run for run in taken):
            raise self._unavailable()
        return answer

    def _unavailable(self) -> CommandRefusedError:
        failure = self.writer.failure or "the store could not be written a moment ago"
        return CommandRefusedError("store_unavailable", f"nothing can be submitted now: {failure}")

    async def _on_cancel(self, command: Cancel) -> Ack:
        return await self._change(events.CancelRequested(_now(), command.run, command.reason))

    async def _on_cancel_group(self, command: CancelGroup) -> Ack:
        return await self._change(events.GroupCancelRequested(_now(), command.group, command.reason))

    async def _on_prioritise(self, command: Prioritise) -> Ack:
        return await self._change(events.PriorityRequested(_now(), command.run, command.group, command.priority))

    async def _on_pause_queue(self, command: PauseQueue) -> Ack:
        return await self._change(events.PauseRequested(_now(), command.paused, command.reason))

    async def _on_drain(self, command: Drain) -> Ack:
        return await self._change(events.DrainRequested(_now(), command.host, command.drained, command.reason))

    async def _change(self, event: events.Event) -> Ack:
        """Feed a request that is acknowledged once it is on disk, or told that it is not."""
        answer, turn = self.feed(event)
        await self.writer.settled(turn)
        note = answer.note if isinstance(answer, Ack) else ""
        return Ack(note=f"{note} (not yet saved: {self.writer.failure})" if self.writer.failure else note)

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
            attempts=[queries.attempt_detail(attempt) for attempt in run.attempts],
            decisions=self.writer.decisions(run.id),
        )

    async def _on_hosts(self, _: Hosts) -> HostList:
        return queries.host_list(self.machine.ledger, time.monotonic())

    async def _on_snapshot(self, command: Snapshot) -> SnapshotResult:
        return queries.snapshot(self.machine.ledger, command, time.monotonic())


def _as_stored(spec: RunSpec) -> RunSpec:
    """A spec as it will be read from the store, so that equal specs stay equal."""
    try:
        return RunSpec.model_validate_json(spec.model_dump_json())
    except (PydanticSerializationError, ValidationError) as error:
        raise CommandRefusedError("invalid_config", f"the spec cannot be written as JSON: {error}") from error


def _now() -> events.Instant:
    return events.Instant(time.monotonic(), time.time())
