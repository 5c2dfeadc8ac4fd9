"""`mosaic logs`: print or follow a run's log or events, without gaps or repetitions."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mosaic_bus import topics
from mosaic_bus.client import BusClient, Follower, LiveView, Subscription
from mosaic_bus.commands import Events, Logs, Rows, Runs, StreamCounters, Streams
from mosaic_bus.errors import CommandRefusedError
from mosaic_bus.messages import Batch, RunState, StreamKind
from mosaic_services.cli.display.output import print_json, short
from mosaic_services.cli.errors import InputError
from mosaic_services.cli.lookup import note_shared
from mosaic_services.cli.options import current
from mosaic_services.cli.wait.silence import SilenceLimit

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from mosaic_bus.wire.address import Address
    from mosaic_bus.wire.envelope import Message

__all__ = ["command"]

_PAGE = 5000
_POLL_S = 0.5
_STALLED_POLLS = 40


def command(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Any unique part of the run's id, or its name.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow until the run has ended.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=1, help="Start with the last N lines.")] = None,
    events: Annotated[bool, typer.Option("--events", help="Print the events (JSON lines) instead of the log.")] = False,
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=1, help="Which attempt.", show_default="the newest")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: {run, attempt, lines: [{number, line}]}.")
    ] = False,
) -> None:
    """Print a run's log, or follow it."""
    if follow and as_json:
        raise typer.BadParameter("--follow and --json exclude each other")
    if follow:
        current.require_stack()
    with current.reader_address() as address:
        kind: StreamKind = "journal" if events else "log"
        asyncio.run(_main(address, run, attempt, tail, kind, follow=follow, as_json=as_json))


async def _main(
    address: Address,
    wanted: str,
    attempt: int | None,
    tail: int | None,
    kind: StreamKind,
    *,
    follow: bool,
    as_json: bool,
) -> None:
    async with BusClient(address) as bus:
        found = await bus.request("scheduler", Runs(runs=[wanted]))
        note_shared(found)
        (state,) = found.runs
        if attempt is not None and attempt > max(1, state.attempt):
            there = "it has one" if state.attempt <= 1 else f"it has {state.attempt}"
            raise InputError(f"run {short(state.run)} has no attempt {attempt}", there)
        reader = _Reader(bus, state, kind, attempt)
        if follow:
            await reader.follow(tail)
        elif as_json:
            rows = [row async for page in reader.stored(tail) for row in page]
            print_json({"run": state.run, "attempt": reader.attempt, "lines": rows})
        elif not await reader.print_stored(tail):
            what = "events" if kind == "journal" else "log lines"
            print(f"run {short(state.run)} ({state.state}) has no {what}", file=sys.stderr)


class _Reader:
    """Reads one stream by line number: stored lines from telemetry, new lines from the bus."""

    def __init__(self, bus: BusClient, state: RunState, kind: StreamKind, attempt: int | None) -> None:
        self._bus = bus
        self._state = state
        self._kind = kind
        self._fixed = attempt is not None
        self.attempt = attempt or max(1, state.attempt)
        self._next = 0

    def print(self, rows: list[dict[str, Any]]) -> None:
        """Print rows that have not been printed."""
        new = [row for row in rows if row["number"] >= self._next]
        if new:
            sys.stdout.write("".join(f"{row['line']}\n" for row in new))
            sys.stdout.flush()
            self._next = new[-1]["number"] + 1

    # ── stored lines ────────────────────────────────────────────────────────────────────────────

    async def stored(self, tail: int | None) -> AsyncIterator[list[dict[str, Any]]]:
        """Stored lines after those printed, or the last ones, page by page."""
        start: int | None = self._next
        if tail is not None and self._kind == "log":
            yield (await self._page(self._next, tail)).rows
            return
        if tail is not None:
            start = max(self._next, await self._count() - tail)
        while start is not None:
            page = await self._page(start, None)
            yield page.rows
            start = page.next

    async def print_stored(self, tail: int | None) -> bool:
        """Print stored lines that have not been printed; return whether there were any."""
        before = self._next
        async for rows in self.stored(tail):
            self.print(rows)
        return self._next > before

    async def _page(self, start: int, tail: int | None) -> Rows:
        run = self._state.run
        try:
            if self._kind == "journal":
                page = await self._bus.request(
                    "telemetry", Events(run=run, attempt=self.attempt, start=start, limit=_PAGE)
                )
            else:
                query = Logs(run=run, attempt=self.attempt, start=start, limit=_PAGE, tail=tail)
                page = await self._bus.request("telemetry", query)
        except CommandRefusedError as error:
            if error.code != "unknown_run":  # it has written nothing yet
                raise
            return Rows(rows=[])
        return page

    async def _counters(self) -> StreamCounters | None:
        try:
            streams = (await self._bus.request("telemetry", Streams(run=self._state.run))).streams
        except CommandRefusedError:
            return None
        return next((one for one in streams if (one.attempt, one.kind) == (self.attempt, self._kind)), None)

    async def _count(self) -> int:
        counters = await self._counters()
        return counters.stored if counters else 0

    # ── following ───────────────────────────────────────────────────────────────────────────────

    async def follow(self, tail: int | None) -> None:
        """Print stored lines, then new ones, until the run is final and all lines are printed."""
        run = self._state.run
        topic = topics.log if self._kind == "log" else topics.journal
        async with (
            self._bus.subscribe(topic(run)) as live,
            Follower(self._bus, runs=[run], hosts=False, summaries=False) as follower,
        ):
            await self._follow(tail, live, follower.view)

    async def _follow(self, tail: int | None, live: Subscription, view: LiveView) -> None:
        await self.print_stored(tail)
        stalled, outage = 0, SilenceLimit()
        while stalled < _STALLED_POLLS:
            with outage:
                progressed = await self._take_live(live) or await self.print_stored(None)
                self._state = view.runs.get(self._state.run, self._state)
                if not progressed and await self._is_over():
                    return
                ended = self._state.state.final
                stalled = stalled + 1 if ended and not progressed else 0
        print("the end of this log is not stored; lines may be missing", file=sys.stderr)

    async def _take_live(self, live: Subscription) -> bool:
        message = await live.next(_POLL_S)
        if message is None:
            return False
        for each in (message, *live.take_all()):
            await self._take(each)
        return True

    async def _take(self, message: Message) -> None:
        batch = Batch.model_validate(message.payload)
        if batch.attempt > self.attempt and not self._fixed:
            await self.print_stored(None)
            self.attempt, self._next = batch.attempt, 0
        if batch.attempt != self.attempt or not message.buffers:
            return
        if batch.first > self._next:
            # A gap: telemetry has the lines or is having them repaired, and stores what follows, too.
            await self.print_stored(None)
            if batch.first > self._next:
                return
        lines = bytes(message.buffers[0]).decode(errors="replace").split("\n")[: batch.count]
        self.print([{"number": batch.first + index, "line": line} for index, line in enumerate(lines)])

    async def _is_over(self) -> bool:
        if not self._state.state.final:
            return False
        if self._state.attempt > self.attempt and not self._fixed:
            self.attempt, self._next = self._state.attempt, 0
            return False
        if self._state.attempt == 0:
            return True
        counters = await self._counters()
        return counters is not None and counters.final and not counters.missing
