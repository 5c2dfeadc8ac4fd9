"""The service: passes batches from the bus to the writer, and the writer's reports to the bus."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError

from mosaic_bus import topics
from mosaic_bus.commands import (
    Ack,
    Checkpoints,
    Command,
    Episodes,
    Events,
    Logs,
    Metrics,
    RemoveEvents,
    Resend,
    Scalars,
    Series,
    StoredBytes,
    Streams,
    Summaries,
)
from mosaic_bus.errors import BusError, CommandRefusedError
from mosaic_bus.logs import FirstTime, Logger
from mosaic_bus.messages import Batch, Model, StoredPosition, StoredPositions, StreamTails
from mosaic_bus.refusals import RefusalCode, RefusalDetails
from mosaic_bus.service import Service, explain
from mosaic_services.settings.model import Settings
from mosaic_services.telemetry.inbox import Arrival, Inbox
from mosaic_services.telemetry.queries import Queries
from mosaic_services.telemetry.writer import Report, Writer

if TYPE_CHECKING:
    from collections.abc import Callable

    from mosaic_bus.client import Subscription
    from mosaic_bus.wire.envelope import Message
    from mosaic_services.home import StackHome
    from mosaic_services.telemetry.streams import Ask

__all__ = ["TelemetryService"]

_log = Logger()

Result = TypeVar("Result", bound=Model)

ASK_TIMEOUT_S = 0.9
"""Shorter than the interval at which a stream repeats its request, so that one request is pending at a time."""


class TelemetryService(Service):
    """Stores every line exactly once, keeps live aggregates, answers queries."""

    home: StackHome

    def __init__(self, home: StackHome, bus_address: str | None = None, settings: Settings | None = None) -> None:
        home.create()
        # Before the base class counts this start: a second aggregator must not.
        self._lock = home.lock("telemetry")
        settings = settings or Settings()
        tuning = settings.telemetry
        super().__init__(
            "telemetry",
            home,
            bus_address,
            heartbeat_s=settings.services.heartbeat_s,
            queries_at_once=settings.telemetry.queries_at_once,
        )
        self._inbox = Inbox(tuning.inbox_mb * 2**20, time.monotonic)
        self._writer = Writer(
            home.telemetry_store, self._inbox, self._from_writer, time.monotonic, time.time, tuning.summary_every_s
        )
        self._queries = Queries(home.telemetry_store)
        self._loop = asyncio.get_running_loop()
        self._bad_batches = 0
        self._first_time = FirstTime()
        queries = self._queries
        self._answer_in_thread(Summaries, lambda command: queries.summaries(command, self._writer.missing))
        self._answer_in_thread(Streams, lambda command: queries.streams(command, self._writer.missing))
        self._answer_in_thread(Metrics, queries.metrics)
        self._answer_in_thread(Series, queries.series)
        self._answer_in_thread(Episodes, queries.episodes)
        self._answer_in_thread(Scalars, queries.scalars)
        self._answer_in_thread(Events, queries.events)
        self._answer_in_thread(Logs, queries.logs)
        self._answer_in_thread(Checkpoints, queries.checkpoints)
        self._answer_in_thread(StoredBytes, queries.stored_bytes)
        self.handle(RemoveEvents, self._on_remove)

    def _answer_in_thread(self, command: type[Command[Result]], query: Callable[[Any], Result]) -> None:
        """Answer a command with a query, in a thread."""

        async def answer(asked: Command[Result]) -> Result:
            return await asyncio.to_thread(query, asked)

        self.handle(command, answer)

    async def _on_remove(self, command: RemoveEvents) -> Ack:
        problem = await asyncio.wrap_future(self._writer.remove(command.run, open_too=command.open_too))
        if problem:
            raise CommandRefusedError(RefusalCode.NOT_FINAL, problem, RefusalDetails(run=command.run))
        return Ack()

    async def start(self) -> None:
        """Subscribe to all runs and hosts, and start the writer."""
        subscription = self.bus.subscribe("journal.", "log.", "repair.", "streams.")
        await self.bus.synced()
        if self._writer.failure:
            self.set_status("degraded", self._writer.failure)
        self._writer.start()
        self.spawn(self._receive(subscription), "receive")
        self.spawn(self._watch(), "watch")

    async def finish(self) -> None:
        """Store what is queued."""
        if self._writer.is_alive():
            await asyncio.to_thread(self._writer.stop)
        self._lock.close()

    def counters(self) -> dict[str, int | float]:
        """Count received, stored and waiting lines."""
        return {
            **self._writer.counters,
            "bad_batches": self._writer.counters["bad_batches"] + self._bad_batches,
            "inbox_dropped": self._inbox.dropped,
            "inbox_bytes": self._inbox.bytes,
            "lag": sum(self._writer.missing.values()),
        }

    def details(self) -> dict[str, Any]:
        """Where the store is."""
        return {"store": str(self.home.telemetry_store)}

    # ── in ──────────────────────────────────────────────────────────────────────────────────────

    async def _receive(self, subscription: Subscription) -> None:
        async for message in subscription:
            try:
                if message.topic.startswith("streams."):
                    self._inbox.announce(StreamTails.model_validate(message.payload))
                else:
                    self._take_batch(message, repair=message.topic.startswith("repair."))
            except (ValidationError, ValueError) as error:
                self._bad_batches += 1
                if self._first_time(message.header.src):
                    reason = explain(error) if isinstance(error, ValidationError) else str(error)
                    _log.warning("bad body", source=message.header.src, topic=message.topic, reason=reason)

    def _take_batch(self, message: Message, *, repair: bool) -> None:
        batch = Batch.model_validate(message.payload)
        if len(message.buffers) != 1:
            raise ValueError(f"a batch has one buffer, this one {len(message.buffers)}")
        self._inbox.put(Arrival(batch, message.buffers[0], repair))

    async def _watch(self) -> None:
        while self._writer.is_alive():
            await asyncio.sleep(0.2)
        if self._writer.crash is not None:
            raise self._writer.crash

    # ── out ─────────────────────────────────────────────────────────────────────────────────────

    def _from_writer(self, report: Report) -> None:
        """Called in the writer's thread."""
        self._loop.call_soon_threadsafe(self._publish, report)

    def _publish(self, report: Report) -> None:
        if report.heartbeat:
            self.set_status("degraded" if report.failure else "ok", report.failure)
        if report.positions or report.heartbeat:
            positions = [
                StoredPosition(run=key.run, attempt=key.attempt, kind=key.kind, stored=position, final=final)
                for key, (position, final) in report.positions.items()
            ]
            self.bus.publish(topics.STORED, StoredPositions(storing=not report.failure, positions=positions))
        for summary in report.summaries:
            self.bus.publish(topics.summary(summary.run), summary)
        for ask in report.asks:
            self.spawn(self._ask(ask), "ask")

    async def _ask(self, ask: Ask) -> None:
        """Request a stream once; `Stream.tick` repeats the request if nothing comes."""
        key = ask.key
        command = Resend(run=key.run, attempt=key.attempt, kind=key.kind, number=ask.number, offset=ask.offset)
        try:
            await self.bus.request(topics.supervisor(ask.host), command, timeout=ASK_TIMEOUT_S)
        except CommandRefusedError as error:
            _log.warning("resend refused", host=ask.host, run=key.run, attempt=key.attempt, reason=error.message)
        except BusError as error:
            _log.info("resend unanswered", host=ask.host, run=key.run, attempt=key.attempt, reason=str(error))
