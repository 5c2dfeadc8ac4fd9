"""The SQLite store: its tables, and every statement that writes to them. It has one writer."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple

from mosaic_services.telemetry.columns import TEAM
from mosaic_services.telemetry.course import NUMBER_BITS, join, span
from mosaic_services.telemetry.errors import StoreLayoutError
from mosaic_services.telemetry.pyramids import Pyramids
from mosaic_services.telemetry.streams import Counts, Stream, StreamKey
from mosaic_services.telemetry.summary import SCALARS, Summary
from mosaic_services.telemetry.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from mosaic_services.telemetry.columns import Journal

__all__ = ["INSERT_EVENT", "Entry", "Store", "open_for_writing"]

_VERSION = 3

# Large pages and 16 MiB of write-ahead log between checkpoints: fewer system calls per row, 20 % faster than the
# defaults of SQLite.
_PRAGMAS = """
PRAGMA page_size = 16384;
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
PRAGMA wal_autocheckpoint = 1000;
PRAGMA journal_size_limit = 67108864;
PRAGMA cache_size = -65536;
PRAGMA temp_store = MEMORY;
"""

_SCHEMA = """
CREATE TABLE IF NOT EXISTS streams (
    id INTEGER PRIMARY KEY,
    run TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    kind TEXT NOT NULL,             -- journal or log
    host TEXT NOT NULL,
    number INTEGER NOT NULL,        -- the position: everything before it is stored
    offset INTEGER NOT NULL,
    final INTEGER NOT NULL,         -- the stream has ended and is stored completely
    received INTEGER NOT NULL,
    repaired INTEGER NOT NULL,
    malformed INTEGER NOT NULL,
    changed_at REAL NOT NULL,
    summary BLOB,                   -- JSON: the live aggregates at the position (journals only)
    UNIQUE (run, attempt, kind)
);
CREATE TABLE IF NOT EXISTS events ( -- every line of every journal
    id INTEGER PRIMARY KEY,         -- stream << 40 | number
    kind TEXT NOT NULL,
    ts REAL,
    step INTEGER,
    value REAL,                     -- reward of a step, return of an episode
    line                            -- the line as it was written: TEXT, or BLOB where it is not UTF-8
);
CREATE INDEX IF NOT EXISTS events_but_steps ON events (id, kind) WHERE kind <> 'step';
CREATE TABLE IF NOT EXISTS malformed (
    id INTEGER PRIMARY KEY,         -- that of the event
    reason TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS agents ( -- of the steps that name one
    id INTEGER PRIMARY KEY,         -- that of the event
    agent TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS points ( -- of scalars
    stream INTEGER NOT NULL,
    metric TEXT NOT NULL,
    agent TEXT NOT NULL,            -- empty: the team
    number INTEGER NOT NULL,        -- of the line that holds it
    step INTEGER NOT NULL,
    value REAL,                     -- NULL where it is not a number
    ts REAL,
    PRIMARY KEY (stream, metric, agent, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS episodes (
    stream INTEGER NOT NULL,
    agent TEXT NOT NULL,            -- empty: the team
    number INTEGER NOT NULL,        -- of the line that holds it
    step INTEGER NOT NULL,
    ts REAL,
    episode INTEGER,
    value REAL,                     -- the return
    length INTEGER,
    seed INTEGER,
    PRIMARY KEY (stream, agent, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS series (
    id INTEGER PRIMARY KEY,
    stream INTEGER NOT NULL,
    source TEXT NOT NULL,           -- step, episode or scalar
    metric TEXT NOT NULL,
    agent TEXT NOT NULL,            -- empty: the team
    UNIQUE (stream, source, metric, agent)
);
CREATE TABLE IF NOT EXISTS blocks ( -- the closed blocks of the pyramid over each series, see blocks.py
    series INTEGER NOT NULL,
    level INTEGER NOT NULL,
    block INTEGER NOT NULL,         -- of the lines from block << level on
    n INTEGER NOT NULL,
    valued INTEGER NOT NULL,        -- points with a value
    total REAL,
    low REAL,
    high REAL,
    first_step INTEGER NOT NULL,
    last_step INTEGER NOT NULL,
    ts REAL,
    PRIMARY KEY (series, level, block)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS logs (
    id INTEGER PRIMARY KEY,         -- stream << 40 | number
    line
);
CREATE TABLE IF NOT EXISTS probes (id INTEGER PRIMARY KEY, filler BLOB);
"""

INSERT_EVENT = "INSERT INTO events (id, kind, ts, step, value, line) VALUES (?, ?, ?, ?, ?, ?)"
# sqlite3 releases the interpreter's lock for each statement, and the thread that reads the bus takes it each time. Many
# rows per statement are 8 % faster.
_ROWS_AT_ONCE = 32
_INSERT_EVENTS = INSERT_EVENT + ", (?, ?, ?, ?, ?, ?)" * (_ROWS_AT_ONCE - 1)
_WIDTH = 6 * _ROWS_AT_ONCE
_SAVE_STREAM = """
INSERT INTO streams (id, run, attempt, kind, host, number, offset, final, received, repaired, malformed,
                     changed_at, summary)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id) DO UPDATE SET host = excluded.host, number = excluded.number, offset = excluded.offset,
    final = excluded.final, received = excluded.received, repaired = excluded.repaired,
    malformed = excluded.malformed, changed_at = excluded.changed_at,
    summary = excluded.summary
"""
_STREAM_COLUMNS = "id, run, attempt, kind, host, number, offset, final, received, repaired, malformed, summary"
_PROBE_BYTES = 512 * 1024
_FREE_PAGES = 4096  # 64 MiB


class Entry(NamedTuple):
    """A stream as it is in the store."""

    id: int
    stream: Stream
    summary: Summary | None


def open_for_writing(path: Path) -> sqlite3.Connection:
    """Open the store, or create it with its tables."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    db = sqlite3.connect(path, isolation_level=None, timeout=5.0, check_same_thread=False)
    try:
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if version not in (0, _VERSION):  # 0: a new file
            raise StoreLayoutError(str(path), version, _VERSION)
        db.executescript(_PRAGMAS)
        if version < _VERSION:  # an existing store is not written to: the disk may be full
            db.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")
        _sync(path.with_name(f"{path.name}-wal"))
    except BaseException:
        db.close()
        raise
    return db


def _sync(wal: Path) -> None:
    """Flush what a killed process left in the write-ahead log: it may be the only copy of a stream."""
    with contextlib.suppress(FileNotFoundError), wal.open("rb") as file:
        os.fsync(file.fileno())


class Store:
    """Writes streams, events and logs in transactions that the caller begins and commits."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._db = sqlite3.connect(":memory:", check_same_thread=False)
        self._db.close()  # so that use before `open` raises an error of SQLite
        self._next_id = 1
        self._next_series = 1
        self._pyramids: dict[int, Pyramids] = {}  # of the streams that lines were added to

    def open(self) -> None:
        """Open the file, or reopen it after an error."""
        with contextlib.suppress(sqlite3.Error):
            self._db.close()
        self._db = open_for_writing(self.path)
        self._next_id = 1 + (self._db.execute("SELECT max(id) FROM streams").fetchone()[0] or 0)
        self._next_series = 1 + (self._db.execute("SELECT max(id) FROM series").fetchone()[0] or 0)
        self._pyramids.clear()

    def close(self) -> None:
        """Fold the write-ahead log into the file and close it."""
        self._db.close()

    def begin(self) -> None:
        """Start a transaction."""
        self._db.execute("BEGIN IMMEDIATE")

    def commit(self) -> None:
        """End the transaction."""
        self._db.execute("COMMIT")

    def be_durable(self, *, durable: bool) -> None:
        """Choose whether commits wait for the disk; call it outside of transactions.

        Without waiting, a power failure can undo the last commits. A commit that waits also makes the earlier ones
        durable, since they are in the same write-ahead log or were checkpointed, which always waits.
        """
        self._db.execute("PRAGMA synchronous = FULL" if durable else "PRAGMA synchronous = NORMAL")

    def rollback(self) -> None:
        """Roll back, if SQLite has not done so itself."""
        self._pyramids.clear()
        with contextlib.suppress(sqlite3.Error):
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")

    def probe(self) -> None:
        """Raise unless the disk has room."""
        self._db.execute("INSERT INTO probes (filler) VALUES (zeroblob(?))", (_PROBE_BYTES,))
        self._db.execute("DELETE FROM probes")

    # ── streams ─────────────────────────────────────────────────────────────────────────────────

    def find(self, key: StreamKey, host: str) -> Entry:
        """Return a stream as stored, or a new one."""
        row = self._db.execute(
            f"SELECT {_STREAM_COLUMNS} FROM streams WHERE run = ? AND attempt = ? AND kind = ?",  # noqa: S608 - a constant
            key,
        ).fetchone()
        if row is not None:
            return _entry(row)
        stream_id, self._next_id = self._next_id, self._next_id + 1
        return Entry(stream_id, Stream(key, host), self._first_summary(key) if key.kind == "journal" else None)

    def _first_summary(self, key: StreamKey) -> Summary:
        """Return the summary that a new journal starts with: it continues that of the attempt before."""
        row = self._db.execute(
            "SELECT summary FROM streams WHERE run = ? AND kind = 'journal' AND attempt < ? ORDER BY attempt DESC"
            " LIMIT 1",
            (key.run, key.attempt),
        ).fetchone()
        if key.attempt == 1:
            return Summary()
        return Summary.load(None if row is None else row[0]).next_attempt()

    def tally(self, run: str) -> Tally:
        """Count the episodes of a run over all its attempts."""
        tally = Tally()
        for stream, _, last_step in join(self._db, run):
            for row in self._db.execute(
                "SELECT agent, episode, value FROM episodes WHERE stream = ? AND step <= ? ORDER BY number, agent",
                (stream, last_step),
            ):
                tally.add(*row)
        return tally

    def newest_scalars(self, run: str) -> dict[str, float]:
        """Return the newest value of each scalar of the team over all attempts of a run, as many as a summary holds."""
        found: dict[str, float] = {}
        for stream, _, last_step in join(self._db, run):
            for metric, value, _ in self._db.execute(
                "SELECT metric, value, max(number) FROM points"  # SQLite takes the value from the row of the maximum
                " WHERE stream = ? AND agent = ? AND step <= ? AND value IS NOT NULL GROUP BY metric",
                (stream, TEAM, last_step),
            ):
                if metric in found or len(found) < SCALARS:
                    found[metric] = value
        return found

    def unfinished(self) -> list[Entry]:
        """Return all streams that are not complete."""
        rows = self._db.execute(f"SELECT {_STREAM_COLUMNS} FROM streams WHERE NOT final")  # noqa: S608 - a constant
        return [_entry(row) for row in rows]

    def newest_attempt(self, run: str) -> int:
        """Return the highest attempt of a run that has a stored journal, or 0."""
        row = self._db.execute("SELECT max(attempt) FROM streams WHERE run = ? AND kind = 'journal'", (run,)).fetchone()
        return row[0] or 0

    def save(self, entry: Entry, changed_at: float) -> None:
        """Write a stream's position, counts and summary."""
        if entry.stream.final:
            self._pyramids.pop(entry.id, None)
        stream, counts = entry.stream, entry.stream.counts
        self._db.execute(
            _SAVE_STREAM,
            (
                entry.id,
                *stream.key,
                stream.host,
                stream.number,
                stream.offset,
                stream.final,
                counts.received,
                counts.repaired,
                counts.malformed,
                changed_at,
                None if entry.summary is None else entry.summary.dump(),
            ),
        )

    def remove(self, run: str) -> None:
        """Delete everything of a run, in a transaction of its own."""
        self.begin()
        for (stream,) in self._db.execute("SELECT id FROM streams WHERE run = ?", (run,)).fetchall():
            for table in ("events", "malformed", "agents", "logs"):
                self._db.execute(f"DELETE FROM {table} WHERE id BETWEEN ? AND ?", span(stream))  # noqa: S608
            for table in ("points", "episodes"):
                self._db.execute(f"DELETE FROM {table} WHERE stream = ?", (stream,))  # noqa: S608 - a constant
            self._db.execute("DELETE FROM blocks WHERE series IN (SELECT id FROM series WHERE stream = ?)", (stream,))
            self._db.execute("DELETE FROM series WHERE stream = ?", (stream,))
            self._db.execute("DELETE FROM streams WHERE id = ?", (stream,))
            self._pyramids.pop(stream, None)
        self.commit()

    def shrink(self) -> None:
        """Give room back to the disk, if most of a large file is free; otherwise later lines fill it."""
        pages, free = (self._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count"))
        if free > _FREE_PAGES and 2 * free > pages:
            self._db.execute("VACUUM")

    # ── lines ───────────────────────────────────────────────────────────────────────────────────

    def add_journal(self, stream_id: int, first: int, journal: Journal) -> None:
        """Write the lines of a batch; `first` is the number of its first line."""
        pyramids = self._pyramids.get(stream_id)
        if pyramids is None:  # reads what is stored, so it must be made before more is
            pyramids = self._pyramids[stream_id] = Pyramids(self._db, stream_id, self._new_series)
        start = stream_id << NUMBER_BITS | first
        ids = range(start, start + len(journal.lines))
        columns = (journal.kinds, journal.times, journal.steps, journal.values, journal.lines)
        rows = zip(ids, *columns, strict=True)
        values = list(chain.from_iterable(islice(rows, len(ids) - len(ids) % _ROWS_AT_ONCE)))
        self._db.executemany(_INSERT_EVENTS, [values[at : at + _WIDTH] for at in range(0, len(values), _WIDTH)])
        self._db.executemany(INSERT_EVENT, rows)
        if journal.points:
            # Cleaning can make two names equal: the last value wins.
            self._db.executemany(
                "INSERT OR REPLACE INTO points (stream, metric, agent, number, step, value, ts)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                [
                    (stream_id, metric, agent, first + index, step, value, ts)
                    for metric, agent, index, step, value, ts in journal.points
                ],
            )
        if journal.episodes:
            self._db.executemany(
                "INSERT OR REPLACE INTO episodes (stream, number, agent, step, ts, episode, value, length, seed)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [(stream_id, first + index, *row) for index, *row in journal.episodes],
            )
        if journal.agents:
            self._db.executemany(
                "INSERT INTO agents (id, agent) VALUES (?, ?)",
                [(start + index, agent) for index, agent in journal.agents],
            )
        if malformed := journal.malformed:
            self._db.executemany(
                "INSERT INTO malformed (id, reason) VALUES (?, ?)",
                [(start + index, reason) for index, reason in malformed],
            )
        pyramids.add(first, journal)

    def _new_series(self) -> int:
        self._next_series += 1
        return self._next_series - 1

    def add_log(self, stream_id: int, first: int, lines: Sequence[str | bytes]) -> None:
        """Write lines of a log."""
        start = stream_id << NUMBER_BITS | first
        self._db.executemany(
            "INSERT INTO logs (id, line) VALUES (?, ?)",
            zip(range(start, start + len(lines)), lines, strict=True),
        )

    def remove_journal(self, stream_id: int, first: int) -> None:
        """Delete the lines from a number on, after `add_journal` failed half-way."""
        for table in ("events", "malformed", "agents"):
            ids = (stream_id << NUMBER_BITS | first, span(stream_id)[1])
            self._db.execute(f"DELETE FROM {table} WHERE id BETWEEN ? AND ?", ids)  # noqa: S608 - a constant
        for table in ("points", "episodes"):
            self._db.execute(f"DELETE FROM {table} WHERE stream = ? AND number >= ?", (stream_id, first))  # noqa: S608
        self._pyramids.pop(stream_id, None)
        self._db.execute(
            "DELETE FROM blocks WHERE series IN (SELECT id FROM series WHERE stream = ?) AND block >= ? >> level",
            (stream_id, first),
        )


def _entry(row: tuple[int, str, int, str, str, int, int, int, int, int, int, bytes | None]) -> Entry:
    stream_id, run, attempt, kind, host, number, offset, final, received, repaired, malformed, summary = row
    stream = Stream(
        StreamKey(run, attempt, "log" if kind == "log" else "journal"),
        host,
        number,
        offset,
        final=bool(final),
        counts=Counts(received, repaired, malformed),
        known=number,
    )
    return Entry(stream_id, stream, Summary.load(summary) if kind == "journal" else None)
