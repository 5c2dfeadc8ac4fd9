"""Following runs and hosts live: a snapshot and the messages after it, joined into one view without holes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING, Self

from pydantic import ValidationError

from mosaic_bus import topics
from mosaic_bus.client.live import Changes, LiveView, Selection, is_settled
from mosaic_bus.commands import Runs, Snapshot, Summaries
from mosaic_bus.errors import BusError, CommandRefusedError, NoAnswerError
from mosaic_bus.logs import Logger
from mosaic_bus.messages import HostState, RunState, RunSummary

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from mosaic_bus.client.connection import BusClient, Subscription
    from mosaic_bus.wire.envelope import Message

__all__ = ["Follower"]

_log = Logger()

# Services send a heartbeat every second; a busy machine may delay a few.
_SILENT_AFTER_S = 5.0
# The last message about a run may get lost, and then no gap shows it, so changes are asked for at this interval.
_AUDIT_S = 10.0
# The same for summaries of ended runs, until they are complete; the interval doubles up to the second value.
_ENDING_ASK_S = (0.5, 30.0)
_RETRY_S = 0.5
_ANSWER_S = 5.0
# Beyond this many runs it is cheaper to receive all messages and to ignore some.
_TOPICS_OF_RUNS = 100
_SUMMARIES_AT_ONCE = 1000
_QUEUE_LENGTH = 20_000
_MOST_FINAL = 100_000


class Follower:
    """Keeps `view` up to date until it is closed. Use it with `async with Follower(client) as follower:`.

    Every reader calls `wait` with the revision that it last saw, and is told which runs and hosts have changed since.
    """

    def __init__(
        self,
        client: BusClient,
        *,
        runs: Iterable[str] = (),
        group: str = "",
        hosts: bool = True,
        summaries: bool = True,
        final_limit: int = 50,
    ) -> None:
        """Follow the runs with these ids, those of a group, or all; of these, keep `final_limit` that have ended."""
        self.view = LiveView(Selection(frozenset(runs), group, final_limit))
        self._client = client
        self._hosts = hosts
        self._summaries = summaries
        self._subscription: Subscription | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._ready = asyncio.Event()
        self._news = asyncio.Event()
        self._sync = asyncio.Event()
        self._ask_all = True
        self._lost = 0
        self._audit_at = 0.0
        self._epochs: dict[str, int] = {}
        self._heard: dict[str, float] = {}
        self._hosts_heard: set[str] = set()
        # Runs whose summary to ask for: when, and how long to wait before asking once more.
        self._due: dict[str, tuple[float, float]] = {}
        self._failure: BaseException | None = None
        self._services = ("broker", "scheduler", *(["telemetry"] if summaries else []))

    async def __aenter__(self) -> Self:
        await self.start()
        try:
            await self.ready()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Subscribe and begin to ask; `ready` tells when the view is filled."""
        self._heard = dict.fromkeys(self._services, time.monotonic())
        self._subscription = self._client.subscribe(*self._prefixes(), max_queue=_QUEUE_LENGTH)
        self._client.on_welcome.append(self._on_welcome)
        self._tasks = [asyncio.create_task(self._listen(self._subscription)), asyncio.create_task(self._ask_for_ever())]
        for task in self._tasks:
            task.add_done_callback(self._task_ended)

    async def ready(self, timeout: float = 10.0) -> None:
        """Wait until the view is filled; raise `NoAnswerError` if the scheduler does not answer in time."""
        try:
            async with asyncio.timeout(timeout):
                await self._ready.wait()
        except TimeoutError:
            raise NoAnswerError("scheduler", Snapshot.name, timeout) from None
        self._raise_failure()

    async def close(self) -> None:
        """Stop following; the view stays as it is."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []
        if self._subscription is not None:
            self._subscription.close()
            with contextlib.suppress(ValueError):
                self._client.on_welcome.remove(self._on_welcome)

    # ── for readers ─────────────────────────────────────────────────────────────────────────────

    async def wait(self, since: int, timeout: float | None = None) -> Changes:
        """Wait for something newer than a revision; the changes are empty if there was nothing in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while self.view.revision <= since:
                    self._raise_failure()
                    await self._news.wait()
        return self.view.changes_since(since)

    async def changes(self) -> AsyncIterator[Changes]:
        """Yield what has changed, the whole view first."""
        revision = 0
        while True:
            changes = await self.wait(revision)
            revision = changes.revision
            yield changes

    def silent(self) -> dict[str, float]:
        """Services that have not been heard for some seconds, with the seconds: what they tell may be out of date.

        If the broker is silent, nobody else can be heard.
        """
        now = time.monotonic()
        quiet = {name: now - at for name, at in self._heard.items() if now - at > _SILENT_AFTER_S}
        return {"broker": quiet["broker"]} if "broker" in quiet else quiet

    # ── listening ───────────────────────────────────────────────────────────────────────────────

    def _prefixes(self) -> list[str]:
        runs = self.view.selection.runs
        some = bool(runs) and len(runs) <= _TOPICS_OF_RUNS
        prefixes = [topics.service_state(name) for name in self._services]
        prefixes += map(topics.run_state, runs) if some else [topics.RUN_STATES]
        if self._hosts:
            prefixes.append(topics.HOST_STATES)
        if self._summaries:
            prefixes += map(topics.summary, runs) if some else [topics.SUMMARIES]
        return prefixes

    async def _listen(self, subscription: Subscription) -> None:
        async for message in subscription:
            self._take(message)
            for each in subscription.take_all():
                self._take(each)
            lost = subscription.missed + subscription.dropped
            if lost > self._lost:
                self._lost = lost
                self._ask_again()
            self._tell()
        raise BusError("this bus is closed: open another")

    def _take(self, message: Message) -> None:
        topic, source = message.topic, message.header.src
        self._note_sender(source, message.header.epoch)
        try:
            if topic.startswith(topics.RUN_STATES) and source == "scheduler":
                self._take_state(message)
            elif topic.startswith(topics.SUMMARIES) and source == "telemetry":
                self._take_summary(RunSummary.model_validate(message.payload))
            elif topic.startswith(topics.HOST_STATES):
                state = HostState.model_validate(message.payload)
                self._hosts_heard.add(state.host)
                self.view.take_host(state)
        except ValidationError as error:
            self._client.counters["bad"] += 1
            _log.debug("bad body", topic=topic, source=source, reason=str(error))

    def _note_sender(self, source: str, epoch: int) -> None:
        if source not in self._heard:
            return
        self._heard[source] = time.monotonic()
        if self._epochs.setdefault(source, epoch) != epoch:
            self._epochs[source] = epoch
            self._ask_all |= source == "scheduler"
            self._ask_again()

    def _take_state(self, message: Message) -> None:
        payload = message.payload
        version = payload.get("version")
        # Most states are repeated: these are recognised without reading them.
        if isinstance(version, int) and self.view.is_old(str(payload.get("run")), version):
            return
        state = RunState.model_validate(payload)
        if self.view.take_state(state):
            self._expect_end(state)

    def _take_summary(self, summary: RunSummary) -> None:
        self.view.take_summary(summary)
        state = self.view.runs.get(summary.run)
        if state is not None and is_settled(state, self.view.summaries.get(summary.run)):
            self._due.pop(summary.run, None)

    def _expect_end(self, state: RunState) -> None:
        ends = self._summaries and state.state.final
        if ends and not is_settled(state, self.view.summaries.get(state.run)):
            self._due[state.run] = (time.monotonic() + _ENDING_ASK_S[0], _ENDING_ASK_S[0])
            self._sync.set()

    def _on_welcome(self) -> None:
        # After a reconnection, whatever was sent meanwhile is missing.
        self._ask_again()

    def _ask_again(self) -> None:
        self._summaries_wanted()
        self._audit_at = 0.0
        self._sync.set()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    # ── asking ──────────────────────────────────────────────────────────────────────────────────

    async def _ask_for_ever(self) -> None:
        await self._client.synced()
        while True:
            wait = _RETRY_S
            self._sync.clear()
            try:
                if time.monotonic() >= self._audit_at:
                    await self._ask_states()
                    self._audit_at = time.monotonic() + _AUDIT_S
                    self._tell()
                await self._ask_summaries()
                wait = min([self._audit_at, *(due for due, _ in self._due.values())]) - time.monotonic()
            except BusError as error:
                if isinstance(error, CommandRefusedError) and not self._ready.is_set():
                    raise
                _log.debug("no answer", reason=str(error))
            if self.view.version:
                self._ready.set()
            self._tell()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(wait, 0.05)):
                    await self._sync.wait()

    async def _ask_states(self) -> None:
        view, selection = self.view, self.view.selection
        whole, self._ask_all = self._ask_all, False
        since = 0 if whole else view.version
        final_limit = selection.final_limit if whole and selection.is_all else _MOST_FINAL
        command = Snapshot(runs=sorted(selection.runs), group=selection.group, since=since, final_limit=final_limit)
        try:
            result = await self._client.request("scheduler", command, _ANSWER_S)
        except BusError:
            self._ask_all |= whole
            raise
        if result.version < since:  # another scheduler, which counts anew
            self._ask_all = True
            return await self._ask_states()
        unheard = view.take_snapshot(result, whole=whole)
        if unheard:
            await self._ask_for(unheard)
        for host in result.hosts:
            if self._hosts and host.host not in self._hosts_heard:
                self._hosts_heard.add(host.host)
                view.take_host(host)
        for state in result.runs:
            self._expect_end(state)
        if whole:
            self._summaries_wanted()
        return None

    async def _ask_for(self, runs: list[str]) -> None:
        """Ask for runs by id; those that the scheduler does not know are gone."""
        try:
            found = (await self._client.request("scheduler", Runs(runs=runs, limit=len(runs)), _ANSWER_S)).runs
        except CommandRefusedError:
            found = []
        for state in found:
            self.view.take_state(state)
        for run in set(runs) - {state.run for state in found}:
            self.view.drop(run)

    def _summaries_wanted(self) -> None:
        """Ask for the summary of every run that may have one that is not known."""
        now = time.monotonic()
        for run, state in self.view.runs.items() if self._summaries else ():
            if state.attempt and not (state.state.final and is_settled(state, self.view.summaries.get(run))):
                self._due[run] = (now, _ENDING_ASK_S[0])

    async def _ask_summaries(self) -> None:
        now = time.monotonic()
        due = [run for run, (at, _) in self._due.items() if at <= now]
        for start in range(0, len(due), _SUMMARIES_AT_ONCE):
            wanted = due[start : start + _SUMMARIES_AT_ONCE]
            command = Summaries(runs=wanted, limit=len(wanted))
            for summary in (await self._client.request("telemetry", command, _ANSWER_S)).summaries:
                self.view.take_summary(summary)
            for run in wanted:
                self._put_off(run)

    def _put_off(self, run: str) -> None:
        """Ask again later for the summary of a run that has ended; of others, changes are published."""
        _, delay = self._due.pop(run, (0.0, _ENDING_ASK_S[0]))
        state = self.view.runs.get(run)
        if state is not None and state.state.final and not is_settled(state, self.view.summaries.get(run)):
            self._due[run] = (time.monotonic() + delay, min(2 * delay, _ENDING_ASK_S[1]))

    # ── failing ─────────────────────────────────────────────────────────────────────────────────

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._failure = failure
            self._ready.set()
            self._tell()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
