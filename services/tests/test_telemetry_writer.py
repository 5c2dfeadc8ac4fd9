"""The writer without a bus: unreadable lines, several attempts, a missing store, durability, bounded memory."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from typing import TYPE_CHECKING

import pytest

from mosaic_bus.messages import Batch, Position, StreamTail, StreamTails
from mosaic_services.telemetry import writer as module
from mosaic_services.telemetry.columns import Journal, read_journal
from mosaic_services.telemetry.errors import StoreLayoutError
from mosaic_services.telemetry.inbox import Arrival, Inbox
from mosaic_services.telemetry.store import Store, open_for_writing
from mosaic_services.telemetry.streams import StreamKey
from mosaic_services.telemetry.summary import Summary
from mosaic_services.telemetry.writer import Report, Writer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KEY = StreamKey("run", 1, "journal")


class Bench:
    """A writer and what it reports."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.reports: list[Report] = []
        self.on_report: Callable[[Report], None] = lambda _report: None
        self.inbox = Inbox(1024 * 1024, time.monotonic)
        self.writer = Writer(path, self.inbox, self._hear, time.monotonic, time.time)

    def _hear(self, report: Report) -> None:
        self.reports.append(report)
        self.on_report(report)

    def put(self, lines: list[bytes], first: int = 0, key: StreamKey = KEY) -> None:
        data = b"".join(line + b"\n" for line in lines)
        count = len(lines)
        batch = Batch(
            host="host", run=key.run, attempt=key.attempt, kind=key.kind, first=first, count=count, offset=0, end=9
        )
        self.inbox.put(Arrival(batch, data, repair=False))

    def announce(self, sent: int, *keys: StreamKey) -> None:
        position = Position(number=sent, offset=9)
        tails = [StreamTail(run=key.run, attempt=1, kind=key.kind, sent=position, final=True) for key in keys or (KEY,)]
        self.inbox.announce(StreamTails(host="host", tails=tails))

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 10
        while not condition():
            assert self.writer.crash is None, self.writer.crash
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def stored(self) -> int:
        return max((report.positions[KEY][0].number for report in self.reports if KEY in report.positions), default=0)

    def rows(self, sql: str) -> list[tuple]:
        with contextlib.closing(sqlite3.connect(self.path)) as db:
            return db.execute(sql).fetchall()


@pytest.fixture
def bench(tmp_path):
    bench = Bench(tmp_path / "telemetry" / "telemetry.db")
    yield bench
    if bench.writer.is_alive():
        bench.writer.stop()
    assert bench.writer.crash is None


def step(number: int) -> bytes:
    return json.dumps({"event": "step", "step": number, "ts": 1.0}).encode()


EPISODE = b'{"event":"episode","episode":1,"return":5.0,"step":2,"ts":1.0}'
POISON = b'{"event":"poison","values":{"x":1}}'


# ── unreadable lines ─────────────────────────────────────────────────────────────────────


def poisoned_reading(data: bytes, last_step: int = 0) -> Journal:
    if b"poison" in data:
        raise RecursionError("maximum recursion depth exceeded")
    return read_journal(data, last_step)


def poisoned_binding(data: bytes, last_step: int = 0) -> Journal:
    """Make a value that SQLite refuses, after it has taken other rows of the batch."""
    journal = read_journal(data, last_step)
    for place, kind in enumerate(journal.kinds):
        if kind == "poison":
            journal.values[place] = [1]  # type: ignore[call-overload]
    return journal


def poisoned_adding(self: Summary, journal: Journal) -> None:
    plain_add(self, journal)
    if "poison" in journal.kinds:
        raise OverflowError("too large")


plain_add = Summary.add


@pytest.mark.parametrize(
    ("target", "name", "poisoned", "reason"),
    [
        (module, "read_journal", poisoned_reading, "RecursionError: maximum recursion depth exceeded"),
        (module, "read_journal", poisoned_binding, "Error binding parameter"),
        (Summary, "add", poisoned_adding, "OverflowError: too large"),
    ],
)
def test_line_that_cannot_be_read_is_stored_as_malformed_and_its_neighbours_as_they_are(
    bench, monkeypatch, target, name, poisoned, reason
):
    monkeypatch.setattr(target, name, poisoned)
    lines = [EPISODE, step(1), POISON, *(step(each) for each in range(2, 50)), EPISODE]
    bench.writer.start()
    bench.put([step(0)])
    bench.put(lines, first=1)
    bench.put([step(50), EPISODE], first=1 + len(lines))
    bench.until(lambda: bench.stored() == len(lines) + 3)
    bench.announce(len(lines) + 3)
    bench.until(lambda: any(final for report in bench.reports for _, final in report.positions.values()))
    bench.writer.stop()
    stored = bench.rows("SELECT line FROM events ORDER BY id")
    assert [line.encode() for (line,) in stored] == [step(0), *lines, step(50), EPISODE]
    [(number, why)] = bench.rows("SELECT id & ((1 << 40) - 1), reason FROM malformed")
    assert number == 3
    assert why.startswith("cannot be read: ")
    assert reason in why
    assert bench.rows("SELECT count(*), sum(kind = 'malformed') FROM events") == [(len(lines) + 3, 1)]
    assert bench.rows("SELECT count(*) FROM episodes") == [(3,)]
    [(state, malformed)] = bench.rows("SELECT summary, malformed FROM streams")
    summary = Summary.load(state)
    assert (summary.events, summary.tally.team.episodes, summary.malformed, malformed) == (len(lines) + 3, 3, 1, 1)
    assert bench.writer.counters["unreadable"] == 1


# ── several attempts ────────────────────────────────────────────────────────────────────────────────


def episodes(first: int, last: int, value: float) -> list[bytes]:
    fields = ({"event": "episode", "episode": each, "return": value, "step": each * 10} for each in range(first, last))
    return [json.dumps(each).encode() for each in fields]


STARTED = b'{"event":"run_started","task":"CartPole","total_steps":100}'
FIRST, SECOND, THIRD = (StreamKey("run", attempt, "journal") for attempt in (1, 2, 3))


def resumed(step: int) -> list[bytes]:
    return [STARTED, b'{"event":"checkpoint_loaded","path":"x","step":%d}' % step]


def stored_summary(bench: Bench) -> Summary:
    """Load the newest summary as a query does, and check that it equals a recount."""
    [(state,)] = bench.rows("SELECT summary FROM streams ORDER BY attempt DESC LIMIT 1")
    found = Summary.load(state)
    store = Store(bench.path)
    store.open()
    recounted = store.tally("run")
    store.close()
    assert json.dumps(found.tally.dump()) == json.dumps(recounted.dump())
    return found


def returns(bench: Bench) -> list[float]:
    return list(stored_summary(bench).tally.team.recent)


def store_now(bench: Bench) -> None:
    arrivals, tails = bench.inbox.take(0, 0, 0)
    bench.writer._store_all(arrivals, tails)


def test_what_a_later_attempt_plays_again_is_counted_once(bench):
    bench.put([STARTED, *episodes(1, 6, 1.0)])
    store_now(bench)
    bench.put(resumed(30), key=SECOND)
    store_now(bench)
    assert returns(bench) == [1.0] * 5, "it has reported nothing of a step yet"
    body = stored_summary(bench).message("run", 2)
    assert (body.task, body.step, body.episodes) == ("CartPole", 50, 5)
    bench.put(episodes(4, 5, 2.0), first=2, key=SECOND)
    store_now(bench)
    assert returns(bench) == [1.0, 1.0, 1.0, 2.0]
    assert stored_summary(bench).message("run", 2).step == 40
    bench.put(episodes(5, 8, 2.0), first=3, key=SECOND)
    store_now(bench)
    assert returns(bench) == [1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0]
    bench.put([STARTED, *episodes(1, 3, 3.0)], key=THIRD)  # from the beginning
    store_now(bench)
    assert returns(bench) == [3.0, 3.0]
    assert stored_summary(bench).message("run", 3).step == 20


def test_attempt_that_begins_with_steps_alone_replaces_what_it_plays_again(bench):
    bench.put([STARTED, *episodes(1, 6, 1.0)])
    store_now(bench)
    bench.put(resumed(30), key=SECOND)
    store_now(bench)
    bench.put([step(31), step(32)], first=2, key=SECOND)
    store_now(bench)
    assert returns(bench) == [1.0, 1.0, 1.0]


def test_lines_of_an_earlier_attempt_that_come_late_are_counted(bench):
    bench.put([STARTED, *episodes(1, 3, 1.0)])
    bench.put([*resumed(30), *episodes(4, 6, 2.0)], key=SECOND)
    store_now(bench)
    assert returns(bench) == [1.0, 1.0, 2.0, 2.0]
    bench.put(episodes(3, 6, 1.0), first=3)  # two of them were played again
    store_now(bench)
    assert returns(bench) == [1.0, 1.0, 1.0, 2.0, 2.0]


def test_attempts_that_are_stored_in_reverse_order_are_counted(bench):
    bench.put([*resumed(30), *episodes(4, 6, 2.0)], key=SECOND)
    store_now(bench)
    bench.put([STARTED, *episodes(1, 6, 1.0)])
    store_now(bench)
    assert returns(bench) == [1.0, 1.0, 1.0, 2.0, 2.0]


def test_scalars_of_an_attempt_that_was_replaced_leave_the_summary(bench):
    bench.put([STARTED, b'{"event":"scalars","step":10,"values":{"old":1,"both":1}}'])
    store_now(bench)
    bench.put([STARTED, b'{"event":"scalars","step":1,"values":{"both":2}}'], key=SECOND)
    store_now(bench)
    assert stored_summary(bench).scalars == {"both": 2.0}


def test_streams_of_all_transactions_of_one_round_end_at_once(bench, monkeypatch):
    monkeypatch.setattr(module, "TRANSACTION_S", -1.0)
    other = KEY._replace(run="other")
    bench.announce(1, KEY, other)
    _, tails = bench.inbox.take(0, 0, 0)
    bench.writer._note_tails(tails, 0.0)
    bench.put([step(1)])
    bench.put([step(1)], key=other)
    store_now(bench)
    assert bench.rows("SELECT count(*) FROM streams WHERE final") == [(2,)]


def test_copy_of_a_summary_is_independent_and_equal():
    summary = Summary()
    summary.add(read_journal(EPISODE + b"\n" + b'{"event":"scalars","values":{"a":1}}\n'))
    before = summary.dump()
    copy = summary.copy()
    assert copy.dump() == before
    copy.add(read_journal(EPISODE + b"\n" + b'{"event":"scalars","values":{"b":1}}\n'))
    assert summary.dump() == before != copy.dump()


# ── a missing store ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("obstacle", ["no folder", "no database"])
def test_starts_without_a_usable_store_and_goes_on_when_there_is_one(tmp_path, monkeypatch, obstacle):
    monkeypatch.setattr(module, "RETRY_S", 0.05)
    path = tmp_path / "telemetry" / "telemetry.db"
    blocked = path.parent if obstacle == "no folder" else path
    blocked.parent.mkdir(exist_ok=True)
    blocked.write_text("this is in the way of what should be here")
    bench = Bench(path)
    assert "cannot write" in bench.writer.failure
    bench.writer.start()
    bench.put([step(0)])
    bench.until(lambda: len(bench.reports) > 2)
    assert all(report.heartbeat and report.failure for report in bench.reports)
    assert bench.inbox.dropped > 0
    blocked.unlink()
    bench.until(lambda: not bench.reports[-1].failure)
    bench.put([step(0)])
    bench.until(lambda: bench.stored() == 1)
    bench.writer.stop()
    assert bench.writer.crash is None
    assert bench.rows("SELECT count(*) FROM events") == [(1,)]


def test_ends_at_once_though_the_store_is_not_usable(tmp_path):
    (tmp_path / "telemetry").write_text("")
    bench = Bench(tmp_path / "telemetry" / "telemetry.db")
    bench.writer.start()
    bench.put([step(0)])
    bench.writer.stop()
    assert bench.writer.crash is None


@pytest.mark.parametrize("version", [1, 99])
def test_store_of_another_version_is_refused(tmp_path, version):
    path = tmp_path / "telemetry.db"
    db = open_for_writing(path)
    db.execute(f"PRAGMA user_version = {version}")
    db.close()
    with pytest.raises(StoreLayoutError, match=f"layout {version}"):
        Bench(path)


# ── durability ─────────────────────────────────────────────────────────────────────────


def test_only_the_end_of_a_stream_waits_for_the_disk_and_before_it_is_reported(bench):
    levels: list[tuple[bool, int]] = []
    level = 1
    committed_at: list[int] = []

    def trace(statement: str) -> None:
        nonlocal level
        if statement.startswith("PRAGMA synchronous ="):
            level = 2 if "FULL" in statement else 1
        if statement == "COMMIT":
            committed_at.append(level)

    def hear(report: Report) -> None:
        if report.positions and not report.heartbeat:
            levels.append((any(final for _, final in report.positions.values()), committed_at[-1]))

    bench.writer._store._db.set_trace_callback(trace)
    bench.on_report = hear
    bench.writer.start()
    for number in range(5):
        bench.put([step(number)], first=number)
        bench.until(lambda number=number: bench.stored() == number + 1)
    bench.announce(5)  # all is stored
    bench.until(lambda: levels[-1][0])
    log = KEY._replace(kind="log")
    bench.announce(2, log)  # the end is known before the lines arrive
    bench.put([b"a", b"b"], key=log)
    bench.until(lambda: len(levels) >= 8)
    assert levels == [(False, 1)] * 5 + [(True, 2), (False, 1), (True, 2)]
    bench.writer.stop()
    assert bench.rows("SELECT kind, number, final FROM streams ORDER BY kind") == [("journal", 5, 1), ("log", 2, 1)]


def test_what_a_killed_process_left_in_the_log_is_made_durable_on_opening(tmp_path, monkeypatch):
    path = tmp_path / "telemetry.db"
    left = Store(path)
    left.open()
    left.begin()
    left.add_log(1, 0, ["a"])
    left.commit()  # not closed, so the data is in the write-ahead log only
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    again = Store(path)
    again.open()
    assert len(synced) == 1
    again.close()
    left.close()


# ── bounded memory ─────────────────────────────────────────────────────────────────────


def test_runs_that_are_done_are_forgotten(bench, monkeypatch):
    monkeypatch.setattr(module, "HOST_SILENT_S", 0.1)
    monkeypatch.setattr(module, "POSITIONS_EVERY_S", 0.05)
    bench.writer._summary_every_s = 0.05
    bench.writer.start()
    keys = [StreamKey(f"run-{number}", 1, "journal") for number in range(20)]
    for key in keys:
        bench.put([step(0)], key=key)
    bench.announce(1, *keys)
    bench.until(lambda: not bench.writer._entries and bench.writer.counters["stored"] == 20)
    bench.until(lambda: not bench.writer._newest)
    bench.writer.stop()
    assert bench.rows("SELECT count(*), sum(final) FROM streams") == [(20, 20)]


def test_end_that_was_stored_but_not_published_is_published_after_a_restart(bench):
    bench.writer.start()
    bench.put([step(0)])
    bench.announce(1)
    bench.until(lambda: any(report.positions.get(KEY, (None, False))[1] for report in bench.reports))
    bench.writer.stop()
    following = Bench(bench.path)
    following.writer.start()
    following.announce(1)
    following.until(lambda: any(report.summaries for report in following.reports))
    following.writer.stop()
    assert [each.complete for report in following.reports for each in report.summaries] == [True]


def test_summaries_of_many_runs_take_turns_and_ended_runs_come_first(bench, monkeypatch):
    monkeypatch.setattr(module, "SUMMARIES_AT_ONCE", 4)
    keys = [StreamKey(f"run{number:02}", 1, "journal") for number in range(10)]
    told: list[list[str]] = []
    bench.on_report = lambda report: told.append([each.run for each in report.summaries]) if report.summaries else None
    for key in keys:
        bench.put([step(0)], key=key)
    bench.announce(1, keys[8])  # it has ended
    bench.writer.start()
    bench.until(lambda: {run for runs in told for run in runs} == {key.run for key in keys})
    first = told[: next(place for place in range(1, 11) if len({run for runs in told[:place] for run in runs}) == 10)]
    assert max(len(runs) for runs in told) == 4
    assert len(first) == 3, "no run has a second turn before all had one"
    assert "run08" in first[0]


def test_last_change_of_speed_is_published_even_if_others_had_the_turn(bench, monkeypatch):
    """The speed of a stalled run changes once more; with many runs, its summary waits for its turn."""
    monkeypatch.setattr(module, "SUMMARIES_AT_ONCE", 1)
    writer = bench.writer
    for number in range(3):
        bench.put([step(0), step(100)], key=StreamKey(f"run{number}", 1, "journal"))
    arrivals, tails = bench.inbox.take(0, 0, 0)
    writer._store_all(arrivals, tails)
    told: dict[str, float] = {}
    for turn in range(400):
        report = module.Report()
        writer._make_summaries(report, 1000.0 + turn / 2)
        told.update({each.run: each.steps_per_s for each in report.summaries})
        for entry in writer._entries.values():
            if turn < 10:
                entry.summary.step += 50
    assert told == {key.run: round(entry.summary.steps_per_s, 2) for key, entry in writer._entries.items()}
