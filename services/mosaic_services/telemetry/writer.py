"""The thread that writes the store, many batches per transaction."""

from __future__ import annotations

import heapq
import sqlite3
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mosaic_bus.logs import Logger
from mosaic_services.settings.model import TelemetrySettings
from mosaic_services.telemetry.columns import read_journal, read_log, unreadable
from mosaic_services.telemetry.course import NUMBER_BITS
from mosaic_services.telemetry.errors import explain, is_of_the_store
from mosaic_services.telemetry.store import Entry, Store
from mosaic_services.telemetry.streams import Ask, StreamKey

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mosaic_bus.messages import Position, RunSummary, StreamTails
    from mosaic_services.telemetry.columns import Journal
    from mosaic_services.telemetry.inbox import Arrival, Inbox
    from mosaic_services.telemetry.summary import Summary

__all__ = ["Report", "Writer"]

_log = Logger()

GATHER_S = (0.01, 0.05)
"""Lower and upper limit of the pause between two transactions. The pause is twice the duration of the last one: short
under light load, and few transactions under heavy load."""
ENOUGH_BYTES = 1024 * 1024
"""Queued bytes that end the pause early."""
TRANSACTION_S = 0.1
"""Time after which a transaction is committed, so that positions are published in time."""
TICK_S = 0.1
"""Interval at which streams are checked for missing lines."""
SUMMARIES_AT_ONCE = 250
"""Summaries per round. If more runs have changed, they take turns: every message costs each subscriber."""
POSITIONS_EVERY_S = 1.0
"""Interval at which all positions are published, for bridges that missed one."""
RETRY_S = 1.0
"""Interval at which a store that failed is tried again."""
HOST_SILENT_S = 5.0
"""Time after which the streams of a host that announces nothing are forgotten."""
_LARGEST = 1 << 62
"""Largest byte offset that is accepted."""
_NEWLINE = ord("\n")


@dataclass(slots=True)
class Report:
    """What the service has to publish."""

    positions: dict[StreamKey, tuple[Position, bool]] = field(default_factory=dict)  # and whether it is final
    asks: list[Ask] = field(default_factory=list)
    summaries: list[RunSummary] = field(default_factory=list)
    heartbeat: bool = False  # publish the positions even if there are none
    failure: str = ""  # why nothing can be stored at present


class Writer(threading.Thread):
    """Decides about batches, stores them, and reports through a callback, which runs in this thread."""

    def __init__(
        self,
        path: Path,
        inbox: Inbox,
        report: Callable[[Report], None],
        clock: Callable[[], float],
        wall: Callable[[], float],
        summary_every_s: float = TelemetrySettings().summary_every_s,
    ) -> None:
        super().__init__(name="telemetry-writer", daemon=True)
        self.counters = dict.fromkeys(
            ("stored", "commits", "repeated", "beyond", "asked", "repaired", "bad_batches", "unreadable"), 0
        )
        self.missing: dict[StreamKey, int] = {}
        self.crash: BaseException | None = None
        self.failure = ""  # why the store could not be opened at the start
        self._path = path
        self._inbox = inbox
        self._report = report
        self._clock = clock
        self._wall = wall
        self._summary_every_s = summary_every_s
        self._store = Store(path)
        self._entries: dict[StreamKey, Entry] = {}
        self._newest: dict[str, int] = {}
        self._recount: set[str] = set()  # runs to be summed up again over their attempts, at the next commit
        self._announced: dict[str, tuple[float, set[StreamKey]]] = {}
        self._changed: set[StreamKey] = set()
        self._told_at: dict[StreamKey, float] = {}
        self._removals: deque[tuple[str, bool, Future[str]]] = deque()
        try:
            self._store.open()
            self._load()
        except (sqlite3.Error, OSError) as error:  # such as a full disk: the service starts, degraded
            self.failure = explain(error, path)

    def run(self) -> None:
        """Store batches until the inbox is closed and empty."""
        try:
            self._run()
        except BaseException as error:  # the service raises it and ends
            self.crash = error
        finally:
            self._store.close()

    def remove(self, run: str, *, open_too: bool = False) -> Future[str]:
        """Have everything of a run deleted, even of open streams if so asked; the result says why it was not."""
        asked: Future[str] = Future()
        self._removals.append((run, open_too, asked))
        return asked

    def stop(self) -> None:
        """Store what is queued, then end."""
        self._inbox.close()
        self.join()

    def _run(self) -> None:
        next_tick = next_summaries = next_positions = self._clock()
        gather_until = 0.0
        if self.failure:
            self._recover(self.failure)
        while not (self._inbox.closed and not self._inbox.bytes):
            arrivals, tails = self._inbox.take(next_tick, gather_until, ENOUGH_BYTES)
            now = self._clock()
            report = Report()
            try:
                self._note_tails(tails, now)
                self._store_all(arrivals, tails)
                if arrivals:
                    done = self._clock()
                    gather_until = done + min(max(GATHER_S[0], 2 * (done - now)), GATHER_S[1])
                self._remove_runs()
                if now >= next_tick:
                    next_tick = now + TICK_S
                    self._tick(report, now)
                if now >= next_summaries:
                    next_summaries = now + self._summary_every_s
                    self._make_summaries(report, now)
                if now >= next_positions:
                    next_positions = now + POSITIONS_EVERY_S
                    self._make_positions(report, now)
            except sqlite3.Error as error:
                self._recover(explain(error, self._path))
            else:
                if report.asks or report.summaries or report.heartbeat:
                    self._report(report)

    # ── batches ─────────────────────────────────────────────────────────────────────────────────

    def _store_all(self, arrivals: list[Arrival], tails: list[StreamTails]) -> None:
        """Store everything in transactions of bounded length."""
        # Only a stream that was announced or has grown can have ended.
        candidates = {StreamKey(each.run, each.attempt, each.kind) for tail in tails for each in tail.tails}
        touched: dict[StreamKey, Entry] = {}
        began = 0.0
        for arrival in arrivals:
            now = self._clock()
            if touched and now - began > TRANSACTION_S:
                self._commit(touched)
            if not touched:
                began = now
            self._store_one(arrival, now, touched)
            candidates.update(touched)
        if touched:
            self._commit(touched)
        self._end_streams(candidates)

    def _end_streams(self, candidates: set[StreamKey]) -> None:
        """Mark streams that are stored completely. Nobody sends them again, so this commit waits for the disk."""
        found = {key: entry for key in candidates if (entry := self._entries.get(key)) is not None}
        ended = {key: entry for key, entry in found.items() if entry.stream.ended and not entry.stream.final}
        if not ended:
            return
        self._store.be_durable(durable=True)
        self._store.begin()
        for entry in ended.values():
            entry.stream.final = True
        self._commit(ended)
        self._store.be_durable(durable=False)

    def _store_one(self, arrival: Arrival, now: float, touched: dict[StreamKey, Entry]) -> None:
        batch, data, repair = arrival
        whole = data.count(b"\n") == batch.count and (not data or data[-1] == _NEWLINE)
        if not whole or not _fits(batch.first + batch.count, batch.end):
            self.counters["bad_batches"] += 1
            return
        entry = self._find(StreamKey(batch.run, batch.attempt, batch.kind), batch.host)
        stream = entry.stream
        take = stream.offer(batch.first, batch.count, batch.end, repair=repair, now=now)
        if take is None:
            self.counters["repeated" if batch.first + batch.count <= stream.number else "beyond"] += 1
            return
        if not touched:
            self._store.begin()
        touched[stream.key] = entry
        if take.drop:
            data = _without(data, take.drop)
        if entry.summary is None:
            self._store.add_log(entry.id, take.first, read_log(data))
        else:
            before, waited = entry.summary.malformed, entry.summary.step_before is not None
            summary = self._add_journal(entry.id, take.first, data, entry.summary)
            stream.counts.malformed += summary.malformed - before
            begins = stream.key.attempt > 1 and (take.first == 0 or (waited and summary.step_before is None))
            if begins or stream.key.attempt < self._newest[stream.key.run]:
                self._recount.add(stream.key.run)
            self._entries[stream.key] = touched[stream.key] = entry._replace(summary=summary)
        self.counters["stored"] += take.lines
        if repair:
            self.counters["repaired"] += take.lines

    def _add_journal(self, stream_id: int, first: int, data: bytes, summary: Summary) -> Summary:
        """Store lines of a journal and return the summary that includes them. Unreadable lines become `malformed`."""
        try:
            return self._add_lines(stream_id, first, read_journal(data, summary.step), summary)
        except Exception as error:
            if is_of_the_store(error):
                raise
            _log.warning("batch cannot be read", stream=stream_id, first=first, reason=repr(error)[:500])
        self._store.remove_journal(stream_id, first)
        for number, line in enumerate(data[:-1].split(b"\n"), first):
            try:
                summary = self._add_lines(stream_id, number, read_journal(line + b"\n", summary.step), summary)
            except Exception as error:
                if is_of_the_store(error):
                    raise
                self.counters["unreadable"] += 1
                self._store.remove_journal(stream_id, number)
                summary = self._add_lines(stream_id, number, unreadable(line, error), summary)
        return summary

    def _add_lines(self, stream_id: int, first: int, journal: Journal, summary: Summary) -> Summary:
        self._store.add_journal(stream_id, first, journal)
        # On a copy, since an error half-way would leave the summary unusable. Plain steps cannot fail.
        following = summary.copy() if journal.events else summary
        following.add(journal)
        return following

    def _commit(self, touched: dict[StreamKey, Entry]) -> None:
        wall = self._wall()
        for entry in touched.values():
            self._store.save(entry, wall)
        for run in self._recount:
            key = StreamKey(run, self._newest[run], "journal")
            entry = touched[key] = self._find(key, "")
            if entry.summary is not None:
                entry.summary.tally = self._store.tally(run)
                entry.summary.scalars = self._store.newest_scalars(run)
            self._store.save(entry, wall)
        self._recount.clear()
        self._store.commit()
        self.counters["commits"] += 1
        self._changed.update(touched)
        self._report(Report(positions={key: _standing(entry) for key, entry in touched.items()}))
        touched.clear()

    # ── streams ─────────────────────────────────────────────────────────────────────────────────

    def _load(self) -> None:
        self._newest.clear()
        self._recount.clear()
        self._entries = {entry.stream.key: entry for entry in self._store.unfinished()}
        for key in self._entries:
            self._note_attempt(key)

    def _find(self, key: StreamKey, host: str) -> Entry:
        entry = self._entries.get(key)
        if entry is None:
            entry = self._entries[key] = self._store.find(key, host)
            self._note_attempt(key)
        return entry

    def _note_attempt(self, key: StreamKey) -> None:
        if key.kind == "journal":
            newest = self._newest.get(key.run) or self._store.newest_attempt(key.run)
            self._newest[key.run] = max(newest, key.attempt)

    def _note_tails(self, tails: list[StreamTails], now: float) -> None:
        for each in tails:
            keys = set()
            for tail in each.tails:
                key = StreamKey(tail.run, tail.attempt, tail.kind)
                if not _fits(tail.sent.number, tail.sent.offset):
                    self.counters["bad_batches"] += 1
                    continue
                known = key in self._entries
                entry = self._find(key, each.host)
                entry.stream.announce(each.host, tail.sent.number, final=tail.final)
                if entry.stream.final and not known:
                    self._changed.add(key)  # telemetry may have died before it published the end
                keys.add(key)
            self._announced[each.host] = (now, keys)

    def _remove_runs(self) -> None:
        removed = bool(self._removals)
        while self._removals:
            run, open_too, asked = self._removals.popleft()
            keys = [key for key in self._entries if key.run == run]
            if not open_too and any(not self._entries[key].stream.final for key in keys):
                asked.set_result(f"lines of run {run} may still come: try again later")
                continue
            try:
                self._store.remove(run)
            except sqlite3.Error as error:
                asked.set_result(explain(error, self._path))
                raise
            for key in keys:
                del self._entries[key]
                self._changed.discard(key)
                self._told_at.pop(key, None)
            self._newest.pop(run, None)
            asked.set_result("")
        if removed:
            self._store.shrink()

    # ── periodic work ────────────────────────────────────────────────────────────────────────────

    def _tick(self, report: Report, now: float) -> None:
        missing = {}
        for key, entry in self._entries.items():
            if (ask := entry.stream.tick(now)) is not None:
                report.asks.append(ask)
            if entry.stream.missing:
                missing[key] = entry.stream.missing
        self.counters["asked"] += len(report.asks)
        self.missing = missing

    def _make_summaries(self, report: Report, now: float) -> None:
        for key in [key for key in self._changed if key.kind == "log"]:
            self._changed.discard(key)
            if self._entries[key].stream.final:  # then the run may be complete, which the summary says
                journal = key._replace(kind="journal")
                if self._find(journal, self._entries[key].stream.host).stream.final:
                    self._changed.add(journal)
        news = []
        for key, entry in self._entries.items():
            if entry.summary is None or self._newest.get(key.run) != key.attempt:
                self._changed.discard(key)
                continue
            if not entry.stream.final and entry.summary.rate(now):
                self._changed.add(key)
            if key in self._changed:
                news.append((not entry.stream.final, self._told_at.get(key, 0.0), key))
        # Ended runs first, then those whose last summary is oldest.
        for _, _, key in heapq.nsmallest(SUMMARIES_AT_ONCE, news):
            entry = self._entries[key]
            if entry.summary is not None:
                report.summaries.append(self._summary(key, entry, entry.summary))
            self._told_at[key] = now
            self._changed.discard(key)

    def _summary(self, key: StreamKey, entry: Entry, summary: Summary) -> RunSummary:
        log = self._entries.get(key._replace(kind="log"))
        return summary.message(
            key.run,
            key.attempt,
            complete=entry.stream.final and (log is None or log.stream.final),
            received=entry.stream.counts.received,
            repaired=entry.stream.counts.repaired,
            missing=entry.stream.missing,
        )

    def _make_positions(self, report: Report, now: float) -> None:
        """Report the position of each stream that a host still announces, and forget finished ones."""
        self._announced = {host: (at, keys) for host, (at, keys) in self._announced.items() if now - at < HOST_SILENT_S}
        spoken_of = set().union(*(keys for _, keys in self._announced.values()))
        report.heartbeat = True
        report.positions = {key: _standing(self._entries[key]) for key in spoken_of if key in self._entries}
        for key in [key for key, entry in self._entries.items() if entry.stream.final and key not in spoken_of]:
            if key not in self._changed:
                del self._entries[key]
                self._told_at.pop(key, None)
        runs = {key.run for key in self._entries}
        self._newest = {run: attempt for run, attempt in self._newest.items() if run in runs}

    # ── when the store fails ────────────────────────────────────────────────────────────────────

    def _recover(self, failure: str) -> None:
        """Roll back, report the failure every second, and continue once the store can be written again."""
        self._store.rollback()
        while True:
            self._inbox.discard()
            self._report(Report(heartbeat=True, failure=failure))
            if self._inbox.wait_closed(RETRY_S):
                return
            try:
                self._store.open()
                self._store.probe()
                self._changed.clear()
                self._load()
            except (sqlite3.Error, OSError) as again:
                failure = explain(again, self._path)
            else:
                self._report(Report(heartbeat=True))
                return


def _standing(entry: Entry) -> tuple[Position, bool]:
    return entry.stream.position, entry.stream.final


def _fits(number: int, offset: int) -> bool:
    """Whether the store can hold the number and offset of a batch or tail."""
    return number < 1 << NUMBER_BITS and offset < _LARGEST


def _without(data: bytes, lines: int) -> bytes:
    """Remove the first lines."""
    start = 0
    for _ in range(lines):
        start = data.index(b"\n", start) + 1
    return data[start:]
