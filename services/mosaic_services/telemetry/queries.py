"""Answers queries from read-only connections, which never block the writer."""

from __future__ import annotations

import contextlib
import operator
import sqlite3
import time
from typing import TYPE_CHECKING, Any

from mosaic_bus.commands import (
    Checkpoints,
    CheckpointsResult,
    Episodes,
    Events,
    Logs,
    Metrics,
    MetricsResult,
    Rows,
    RunCurves,
    SavedCheckpoint,
    Scalars,
    Series,
    SeriesResult,
    StoredBytes,
    StoredBytesResult,
    StreamCounters,
    Streams,
    StreamsResult,
    Summaries,
    SummariesResult,
)
from mosaic_bus.errors import CommandRefusedError
from mosaic_bus.refusals import RefusalCode, RefusalDetails
from mosaic_services.telemetry.columns import TEAM
from mosaic_services.telemetry.course import LAST_NUMBER, NUMBER_BITS, Part, cut_since, join, span, stored
from mosaic_services.telemetry.series import find_all, has_team
from mosaic_services.telemetry.streams import StreamKey
from mosaic_services.telemetry.summary import Summary
from mosaic_worker.events import read_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

__all__ = ["LONGEST_S", "PAGE_BYTES", "Queries"]

PAGE_BYTES = 16 * 1024 * 1024
"""Maximum size of the lines in a reply, so that it stays below the limit of a message."""
LONGEST_S = 20.0
"""Maximum time of a query: less than the gateway waits, so that nobody can hold a thread for an answer to nobody."""
_LOOK_EVERY = 20_000
"""Instructions of SQLite's virtual machine between two looks at the clock: well below a millisecond."""
_ROW_BYTES = 120
"""Estimated size of a row without its line."""
_EPISODES = """
SELECT number, step, ts, episode, value AS "return", length, seed, nullif(agent, '') AS agent
FROM episodes WHERE stream = ? AND step <= ? AND number >= ? AND agent = ? ORDER BY number
"""
# For runs whose agents report separately: per episode, the sum of returns and the maximum length.
_SUMMED = """
SELECT min(number) AS number, max(step) AS step, max(ts) AS ts, episode, sum(value) AS "return",
       max(length) AS length, min(seed) AS seed, NULL AS agent
FROM episodes WHERE stream = ? AND step <= ? GROUP BY coalesce(episode, -number - 1) HAVING min(number) >= ?
ORDER BY 1
"""
_POINTS = """
SELECT number, step, ts, value
FROM points WHERE stream = ? AND step <= ? AND number >= ? AND metric = ? AND agent = ? ORDER BY number
"""


class Queries:
    """Each method answers one command with its own connection. Call them in threads."""

    def __init__(self, path: Path, longest_s: float = LONGEST_S) -> None:
        self._path = path
        self._longest_s = longest_s
        self._uri = f"{path.absolute().as_uri()}?mode=ro"

    @contextlib.contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        deadline = time.monotonic() + self._longest_s
        try:
            with contextlib.closing(sqlite3.connect(self._uri, uri=True, timeout=5.0, isolation_level=None)) as db:
                db.set_progress_handler(lambda: time.monotonic() > deadline, _LOOK_EVERY)
                db.execute("BEGIN")
                yield db
        except sqlite3.ProgrammingError:
            raise
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
                raise self._unreadable(error) from error
            said = f"this takes longer than {self._longest_s:.0f} s: ask for fewer runs, steps or rows, or by pages"
            raise CommandRefusedError(RefusalCode.TOO_LARGE, said) from error
        except sqlite3.Error as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: sqlite3.Error) -> CommandRefusedError:
        reason = f"{self._path} cannot be read now: {error}; see `mosaic status`"
        return CommandRefusedError(RefusalCode.STORE_UNAVAILABLE, reason)

    # ── summaries and streams ───────────────────────────────────────────────────────────────────

    def summaries(self, command: Summaries, missing: dict[StreamKey, int]) -> SummariesResult:
        """Return the summaries of runs; unknown runs are left out."""
        sql = """
            SELECT run, attempt, final, received, repaired, summary,
                   (SELECT final FROM streams AS log WHERE log.run = journal.run AND log.attempt = journal.attempt
                    AND log.kind = 'log')
            FROM streams AS journal
            WHERE kind = 'journal' AND attempt =
                (SELECT max(attempt) FROM streams AS other WHERE other.run = journal.run AND other.kind = 'journal')
        """
        if command.runs:
            sql += f" AND run IN ({','.join('?' * len(command.runs))})"
        sql += " ORDER BY changed_at DESC LIMIT ?"
        with self._read() as db:
            rows = db.execute(sql, (*command.runs, command.limit)).fetchall()
        return SummariesResult(
            summaries=[
                Summary.load(state).message(
                    run,
                    attempt,
                    complete=bool(final) and log_final != 0 and not missing.get(StreamKey(run, attempt, "log")),
                    received=received,
                    repaired=repaired,
                    missing=0 if final else missing.get(StreamKey(run, attempt, "journal"), 0),
                )
                for run, attempt, final, received, repaired, state, log_final in rows
            ]
        )

    def streams(self, command: Streams, missing: dict[StreamKey, int]) -> StreamsResult:
        """Return the counters of the streams of a run, or of all incomplete streams."""
        condition = "NOT final" if command.run is None else "run = ?"
        with self._read() as db:
            if command.run is not None:
                _require_known(db, command.run)
            rows = db.execute(
                "SELECT run, attempt, kind, host, number, received, repaired, malformed, final FROM streams"  # noqa: S608
                f" WHERE {condition} ORDER BY run, attempt, kind",
                () if command.run is None else (command.run,),
            ).fetchall()
        return StreamsResult(
            streams=[
                StreamCounters(
                    run=run,
                    attempt=attempt,
                    kind=kind,
                    host=host,
                    stored=number,
                    received=received,
                    repaired=repaired,
                    missing=0 if final else missing.get(StreamKey(run, attempt, kind), 0),
                    malformed=malformed,
                    final=bool(final),
                )
                for run, attempt, kind, host, number, received, repaired, malformed, final in rows
            ]
        )

    def stored_bytes(self, command: StoredBytes) -> StoredBytesResult:
        """Return how long the stored journals and logs of runs are."""
        places = ",".join("?" * len(command.runs))
        with self._read() as db:
            sql = f"SELECT run, sum(offset) FROM streams WHERE run IN ({places}) GROUP BY run"  # noqa: S608
            return StoredBytesResult(runs=dict(db.execute(sql, command.runs).fetchall()))

    # ── series ──────────────────────────────────────────────────────────────────────────────────

    def metrics(self, command: Metrics) -> MetricsResult:
        """Return the names of a run's series with their numbers of points, and of its agents."""
        from mosaic_services.telemetry.curves import count_points  # noqa: PLC0415 - needs numpy, slow to import

        with self._read() as db:
            parts = _parts(db, command.run)
            names, agents = find_all(db, parts)
            counts = {name: count_points(db, name, parts) for name in names}
        return MetricsResult(metrics={name: count for name, count in counts.items() if count}, agents=agents)

    def series(self, command: Series) -> SeriesResult:
        """Return curves of runs, each thinned into buckets of lines with mean, minimum and maximum."""
        with self._read() as db:
            runs = [self._curves_of(db, run, command) for run in dict.fromkeys(command.runs)]
        return SeriesResult(runs=[each for each in runs if each is not None])

    def _curves_of(self, db: sqlite3.Connection, run: str, command: Series) -> RunCurves | None:
        from mosaic_services.telemetry.curves import Range, read_curve  # noqa: PLC0415 - needs numpy, slow to import

        if len(command.runs) == 1:
            _require_known(db, run)
        position = stored(db, run)
        if not position:
            return None
        since = command.since.get(run, [])
        if len(since) > len(position) or any(map(operator.gt, since, position)):
            since = []  # the store has lost what was read: begin again
        parts = join(db, run, command.attempt)
        asked = Range(command.first_step, command.last_step, tuple(since))
        curves = [read_curve(db, each, parts, command.agent, asked, command.max_points) for each in command.metrics]
        cut = cut_since(db, run, since) if since and command.attempt is None else None
        return RunCurves(run=run, since=since or None, position=position, cut=cut, curves=curves)

    # ── rows ────────────────────────────────────────────────────────────────────────────────────

    def episodes(self, command: Episodes) -> Rows:
        """Return episodes in order."""
        with self._read() as db:
            parts = _parts(db, command.run, command.attempt)
            if command.agent is None and not has_team(db, parts):
                return _course_page(db, command, parts, _SUMMED, ())
            return _course_page(db, command, parts, _EPISODES, (command.agent or TEAM,))

    def scalars(self, command: Scalars) -> Rows:
        """Return the points of a scalar in order."""
        with self._read() as db:
            parts = _parts(db, command.run, command.attempt)
            return _course_page(db, command, parts, _POINTS, (command.metric, command.agent or TEAM))

    def events(self, command: Events) -> Rows:
        """Return the events of an attempt in order, with their lines."""
        with self._read() as db:
            stream = next((part.stream for part in reversed(_parts(db, command.run, command.attempt))), 0)
            index, condition = "", ""
            if command.kinds:
                condition = f" AND kind IN ({','.join('?' * len(command.kinds))})"
                if "step" not in command.kinds:
                    index, condition = " INDEXED BY events_but_steps", f"{condition} AND kind <> 'step'"
            found = db.execute(
                "SELECT events.id & ?, kind, ts, step, value, line,"  # noqa: S608
                " CASE kind WHEN 'malformed' THEN (SELECT reason FROM malformed WHERE malformed.id = events.id) END"
                f" FROM events{index} WHERE events.id BETWEEN ? AND ?{condition} ORDER BY events.id",
                (LAST_NUMBER, stream << NUMBER_BITS | min(command.start, LAST_NUMBER), span(stream)[1], *command.kinds),
            )

            def rows() -> Iterator[tuple[int, int, dict[str, Any]]]:
                for number, kind, ts, step, value, line, reason in found:
                    text = _text(line)
                    row = {"number": number, "event": kind, "ts": ts, "step": step, "value": value, "line": text}
                    yield number, _bytes(text) + _ROW_BYTES, {**row, **({"reason": reason} if reason else {})}

            return _page(rows(), command.limit)

    def checkpoints(self, command: Checkpoints) -> CheckpointsResult:
        """List the checkpoints that the journals of a run name."""
        with self._read() as db:
            _require_known(db, command.run)
            rows = db.execute(
                "SELECT streams.attempt, streams.host, events.ts, events.step, events.line"
                " FROM streams JOIN events INDEXED BY events_but_steps ON events.id BETWEEN streams.id << ?1"
                " AND streams.id << ?1 | ?2 WHERE streams.run = ?3 AND streams.kind = 'journal'"
                " AND events.kind <> 'step' AND events.kind = 'checkpoint_saved'"
                " ORDER BY streams.attempt DESC, events.id DESC LIMIT ?4",
                (NUMBER_BITS, LAST_NUMBER, command.run, command.limit),
            ).fetchall()
        found = (_checkpoint(*row) for row in reversed(rows))
        return CheckpointsResult(checkpoints=[each for each in found if each is not None])

    def logs(self, command: Logs) -> Rows:
        """Return a page of an attempt's log, or its last lines."""
        with self._read() as db:
            _require_known(db, command.run)
            row = db.execute(
                "SELECT id FROM streams WHERE run = ? AND kind = 'log' AND attempt = coalesce(?, (SELECT max(attempt)"
                " FROM streams WHERE run = ?))",
                (command.run, command.attempt, command.run),
            ).fetchone()
            if row is None:
                return Rows(rows=[])
            first, last = span(row[0])
            if command.tail is not None:
                found: Iterable[tuple[int, str | bytes]] = db.execute(
                    "SELECT id & ?, line FROM logs WHERE id BETWEEN ? AND ? ORDER BY id DESC LIMIT ?",
                    (LAST_NUMBER, first, last, command.tail),
                )
                newest = _page(_log_rows(found), command.tail).rows
                return Rows(rows=newest[::-1])
            found = db.execute(
                "SELECT id & ?, line FROM logs WHERE id BETWEEN ? AND ? ORDER BY id",
                (LAST_NUMBER, first + min(command.start, LAST_NUMBER), last),
            )
            return _page(_log_rows(found), command.limit)


# ── pieces ──────────────────────────────────────────────────────────────────────────────────────────


def _require_known(db: sqlite3.Connection, run: str) -> None:
    if db.execute("SELECT 1 FROM streams WHERE run = ?", (run,)).fetchone() is None:
        said = f"nothing is stored of run {run!r}: it has written nothing yet, or the id is wrong"
        raise CommandRefusedError(RefusalCode.UNKNOWN_RUN, said, RefusalDetails(value=run))


def _parts(db: sqlite3.Connection, run: str, attempt: int | None = None) -> list[Part]:
    """Return the parts of a run, or one whole attempt; an attempt that has written nothing is missing."""
    _require_known(db, run)
    return join(db, run, attempt)


def _course_page(
    db: sqlite3.Connection, command: Episodes | Scalars, parts: list[Part], sql: str, values: tuple[str, ...]
) -> Rows:
    """Return a page of rows of all parts. Where attempts are joined, `start` and `next` hold one in the upper bits."""

    def rows() -> Iterator[tuple[int, int, dict[str, Any]]]:
        for stream, attempt, last_step in parts:
            offset = attempt << NUMBER_BITS if command.attempt is None else 0
            begin = max(0, command.start - offset)
            if begin > LAST_NUMBER:
                continue
            found = db.execute(sql, (stream, last_step, begin, *values))
            names = [column[0] for column in found.description]
            for row in found:
                yield row[0] | offset, _ROW_BYTES, {"attempt": attempt, **dict(zip(names, row, strict=True))}

    return _page(rows(), command.limit)


def _page(rows: Iterable[tuple[int, int, dict[str, Any]]], limit: int) -> Rows:
    """Take rows (place, size, row) up to the limit and to the maximum size of a reply."""
    taken: list[dict[str, Any]] = []
    size = 0
    for place, row_size, row in rows:
        size += row_size
        if len(taken) >= limit or (taken and size > PAGE_BYTES):
            return Rows(rows=taken, next=place)
        taken.append(row)
    return Rows(rows=taken)


def _log_rows(found: Iterable[tuple[int, str | bytes]]) -> Iterator[tuple[int, int, dict[str, Any]]]:
    for number, line in found:
        text = _text(line)
        yield number, _bytes(text) + _ROW_BYTES, {"number": number, "line": text}


def _checkpoint(
    attempt: int, host: str, ts: float | None, step: int | None, line: str | bytes
) -> SavedCheckpoint | None:
    """Read a stored `checkpoint_saved`; None if it names no path."""
    event = read_line(line)
    if event.path is None:
        return None
    best, score = event.fields.get("best") is True, event.number("score")
    return SavedCheckpoint(attempt=attempt, host=host, path=event.path, step=step, ts=ts, best=best, score=score)


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _text(line: str | bytes) -> str:
    return line if isinstance(line, str) else line.decode("utf-8", "backslashreplace")
