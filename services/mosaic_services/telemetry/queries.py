"""Questions about what is stored, answered from read-only connections that never hold up the writer."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from mosaic_bus.commands import (
    Checkpoints,
    CheckpointsResult,
    Episodes,
    Events,
    Logs,
    Metrics,
    MetricsResult,
    Rows,
    SavedCheckpoint,
    Series,
    SeriesResult,
    StreamCounters,
    Streams,
    StreamsResult,
    Summaries,
    SummariesResult,
)
from mosaic_bus.errors import CommandRefusedError
from mosaic_bus.refusals import RefusalCode, RefusalDetails
from mosaic_services.telemetry.lines import number as as_number
from mosaic_services.telemetry.lines import read_event
from mosaic_services.telemetry.store import NUMBER_BITS
from mosaic_services.telemetry.streams import StreamKey
from mosaic_services.telemetry.summary import Summary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

__all__ = ["PAGE_BYTES", "Queries"]

PAGE_BYTES = 16 * 1024 * 1024
"""A reply holds at most so many bytes of lines; `next` says where to go on."""
_ROW_BYTES = 120
_NUMBER = (1 << NUMBER_BITS) - 1
_LARGEST = (1 << 63) - 1
_EPISODE_FIELDS = ("episode", "return", "length", "seed", "agent")


class _Part(NamedTuple):
    """What an attempt contributes to its run: all of it, or the steps before that from which a later one went on."""

    stream: int
    attempt: int
    last_step: int | None


class Queries:
    """Each method answers one command with one short-lived connection; call them in threads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._uri = f"{path.absolute().as_uri()}?mode=ro"

    @contextlib.contextmanager
    def _read(self) -> Iterator[sqlite3.Connection]:
        try:
            with contextlib.closing(sqlite3.connect(self._uri, uri=True, timeout=5.0, isolation_level=None)) as db:
                db.execute("BEGIN")
                yield db
        except sqlite3.ProgrammingError:
            raise
        except sqlite3.Error as error:
            reason = f"{self._path} cannot be read now: {error}; `mosaic status` shows how telemetry is"
            raise CommandRefusedError(RefusalCode.STORE_UNAVAILABLE, reason) from error

    # ── summaries and streams ───────────────────────────────────────────────────────────────────

    def summaries(self, command: Summaries, missing: dict[StreamKey, int]) -> SummariesResult:
        """Aggregates of the newest attempt of each run; runs that are not known are left out."""
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
        """Counters of the streams of a run, or of all that are not complete."""
        condition = "NOT final" if command.run is None else "run = ?"
        with self._read() as db:
            if command.run is not None:
                _stream_ids(db, command.run, None)
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

    # ── series ──────────────────────────────────────────────────────────────────────────────────

    def metrics(self, command: Metrics) -> MetricsResult:
        """Names of a run's series, with how many points each."""
        with self._read() as db:
            found: Counter[str] = Counter()
            rewards = 0
            for stream, _, last in _joined(db, command.run, None):
                found.update(
                    dict(
                        db.execute(
                            "SELECT metric, count(*) FROM points WHERE stream = ? AND step <= ? GROUP BY metric",
                            (stream, _or_all(last)),
                        ).fetchall()
                    )
                )
                rewards += db.execute(
                    "SELECT count(*) FROM (SELECT 1 FROM events WHERE id BETWEEN ? AND ? AND kind = 'step'"
                    " AND value IS NOT NULL AND step <= ?)",
                    (*_span(stream), _or_all(last)),
                ).fetchone()[0]
        return MetricsResult(metrics={**({"reward": rewards} if rewards else {}), **dict(sorted(found.items()))})

    def series(self, command: Series) -> SeriesResult:
        """One series, thinned into buckets of steps: the mean, lowest and highest of each."""
        with self._read() as db:
            source, values = _series_source(command, _joined(db, command.run, command.attempt))
            points, low, high = db.execute(f"SELECT count(*), min(step), max(step) FROM ({source})", values).fetchone()  # noqa: S608
            if points <= command.max_points:
                rows = db.execute(
                    f"SELECT step, value, value, value, ts FROM ({source}) ORDER BY step, place",  # noqa: S608
                    values,
                ).fetchall()
            else:
                rows = db.execute(
                    "SELECT CAST(avg(step) AS INTEGER), avg(value), min(value), max(value), avg(ts)"  # noqa: S608
                    f" FROM ({source}) GROUP BY CAST((step - ?) * ? / ? AS INTEGER) ORDER BY 1",
                    (*values, low, float(command.max_points), float(high - low + 1)),
                ).fetchall()
        steps, means, lows, highs, times = (list(column) for column in zip(*rows, strict=True)) if rows else ([],) * 5
        return SeriesResult(
            metric=command.metric, steps=steps, values=means, lows=lows, highs=highs, times=times, points=points
        )

    # ── rows ────────────────────────────────────────────────────────────────────────────────────

    def episodes(self, command: Episodes) -> Rows:
        """Episodes in order; where attempts are joined, `start` and `next` count the attempt in their upper bits."""
        with self._read() as db:
            parts = _joined(db, command.run, command.attempt)
            joined = command.attempt is None

            def place(attempt: int, number: int) -> int:
                return attempt << NUMBER_BITS | number if joined else number

            def rows() -> Iterator[tuple[int, int, dict[str, Any]]]:
                for stream, attempt, last in parts:
                    begin = max(0, command.start - place(attempt, 0))
                    if begin > _NUMBER:
                        continue
                    for number, ts, step, value, line in db.execute(
                        "SELECT id & ?, ts, step, value, line FROM events INDEXED BY events_but_steps"
                        " WHERE id BETWEEN ? AND ? AND kind <> 'step' AND kind = 'episode' AND coalesce(step, 0) <= ?"
                        " ORDER BY id",
                        (_NUMBER, stream << NUMBER_BITS | begin, _span(stream)[1], _or_all(last)),
                    ):
                        row = {"number": number, "attempt": attempt, "step": step, "ts": ts, **_episode(line)}
                        yield place(attempt, number), _ROW_BYTES, {**row, "return": value}

            return _page(rows(), command.limit)

    def events(self, command: Events) -> Rows:
        """Events of one attempt in order of number, with the lines as they were written."""
        with self._read() as db:
            stream = next(iter(_stream_ids(db, command.run, command.attempt)), 0)
            index, condition = "", ""
            if command.kinds:
                condition = f" AND kind IN ({','.join('?' * len(command.kinds))})"
                if "step" not in command.kinds:
                    index, condition = " INDEXED BY events_but_steps", f"{condition} AND kind <> 'step'"
            found = db.execute(
                "SELECT events.id & ?, kind, ts, step, value, line,"  # noqa: S608
                " CASE kind WHEN 'malformed' THEN (SELECT reason FROM malformed WHERE malformed.id = events.id) END"
                f" FROM events{index} WHERE events.id BETWEEN ? AND ?{condition} ORDER BY events.id",
                (_NUMBER, stream << NUMBER_BITS | min(command.start, _NUMBER), _span(stream)[1], *command.kinds),
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
            _stream_ids(db, command.run, None)
            rows = db.execute(
                "SELECT streams.attempt, streams.host, events.ts, events.step, events.line"
                " FROM streams JOIN events INDEXED BY events_but_steps ON events.id BETWEEN streams.id << ?1"
                " AND streams.id << ?1 | ?2 WHERE streams.run = ?3 AND streams.kind = 'journal'"
                " AND events.kind <> 'step' AND events.kind = 'checkpoint_saved'"
                " ORDER BY streams.attempt DESC, events.id DESC LIMIT ?4",
                (NUMBER_BITS, _NUMBER, command.run, command.limit),
            ).fetchall()
        found = (_checkpoint(*row) for row in reversed(rows))
        return CheckpointsResult(checkpoints=[each for each in found if each is not None])

    def logs(self, command: Logs) -> Rows:
        """Lines of the log of one attempt: a page, or the end."""
        with self._read() as db:
            _stream_ids(db, command.run, None)
            row = db.execute(
                "SELECT id FROM streams WHERE run = ? AND kind = 'log' AND attempt = coalesce(?, (SELECT max(attempt)"
                " FROM streams WHERE run = ?))",
                (command.run, command.attempt, command.run),
            ).fetchone()
            if row is None:
                return Rows(rows=[])
            first, last = _span(row[0])
            if command.tail is not None:
                found: Iterable[tuple[int, str | bytes]] = db.execute(
                    "SELECT id & ?, line FROM logs WHERE id BETWEEN ? AND ? ORDER BY id DESC LIMIT ?",
                    (_NUMBER, first, last, command.tail),
                )
                newest = _page(_log_rows(found), command.tail).rows
                return Rows(rows=newest[::-1])
            found = db.execute(
                "SELECT id & ?, line FROM logs WHERE id BETWEEN ? AND ? ORDER BY id",
                (_NUMBER, first + min(command.start, _NUMBER), last),
            )
            return _page(_log_rows(found), command.limit)


# ── pieces ──────────────────────────────────────────────────────────────────────────────────────────


def _stream_ids(db: sqlite3.Connection, run: str, attempt: int | None) -> dict[int, int]:
    """Ids of the journals of a run with their attempts, oldest first; one that wrote nothing is not there."""
    rows = db.execute(
        "SELECT id, attempt FROM streams WHERE run = ? AND kind = 'journal' ORDER BY attempt", (run,)
    ).fetchall()
    if not rows and not db.execute("SELECT 1 FROM streams WHERE run = ?", (run,)).fetchone():
        said = f"nothing is stored of run {run!r}: it has written nothing yet, or the id is wrong"
        raise CommandRefusedError(RefusalCode.UNKNOWN_RUN, said, RefusalDetails(value=run))
    return {stream: each for stream, each in rows if attempt in {None, each}}


def _joined(db: sqlite3.Connection, run: str, attempt: int | None) -> list[_Part]:
    """The attempts of a run as one course of steps, or one of them as it is.

    An attempt that went on from a checkpoint played the steps after it anew, and one that began anew all of them: of
    those before it, the rest counts no more. One that has got nowhere as yet takes nothing away.
    """
    ids = _stream_ids(db, run, attempt)
    parts: list[_Part] = []
    last: int | None = None
    for stream, each in reversed(ids.items()):
        parts.append(_Part(stream, each, last))
        if len(ids) > 1 and (first := _first_step(db, stream)) is not None:
            last = min(_resumed_at(db, stream), first - 1, _or_all(last))
    return parts[::-1]


def _first_step(db: sqlite3.Connection, stream: int) -> int | None:
    """The first step that an attempt reported anything of."""
    row = db.execute(
        "SELECT step FROM events WHERE id BETWEEN ? AND ? AND kind IN ('step', 'episode', 'scalars')"
        " AND step IS NOT NULL ORDER BY id LIMIT 1",
        _span(stream),
    ).fetchone()
    return None if row is None else int(row[0])


def _resumed_at(db: sqlite3.Connection, stream: int) -> int:
    """The step from which an attempt went on; -1, before all steps, if it began anew."""
    row = db.execute(
        "SELECT step FROM events INDEXED BY events_but_steps WHERE id BETWEEN ? AND ? AND kind <> 'step'"
        " AND kind = 'checkpoint_loaded' AND step IS NOT NULL ORDER BY id LIMIT 1",
        _span(stream),
    ).fetchone()
    return -1 if row is None else int(row[0])


def _or_all(last_step: int | None) -> int:
    return _LARGEST if last_step is None else last_step


def _span(stream: int) -> tuple[int, int]:
    """The ids of a stream's first and last possible line."""
    return stream << NUMBER_BITS, stream << NUMBER_BITS | _NUMBER


def _series_source(command: Series, attempts: list[_Part]) -> tuple[str, list[Any]]:
    """The rows of a series before thinning, as SQL with its values: step, value, ts, place."""
    parts: list[str] = []
    values: list[Any] = []
    for stream, _, last in attempts:
        limits = ""
        bounds: list[Any] = []
        for sign, bound in ((">=", command.first_step), ("<=", command.last_step), ("<=", last)):
            if bound is not None:
                limits += f" AND step {sign} ?"
                bounds.append(bound)
        if command.metric == "reward":
            parts.append(
                "SELECT step, value, ts, id AS place FROM events WHERE id BETWEEN ? AND ? AND kind = 'step'"  # noqa: S608
                f" AND step IS NOT NULL AND value IS NOT NULL{limits}"
            )
            values += [*_span(stream), *bounds]
        else:
            parts.append(f"SELECT step, value, ts, number AS place FROM points WHERE stream = ? AND metric = ?{limits}")  # noqa: S608
            values += [stream, command.metric, *bounds]
    return " UNION ALL ".join(parts) or "SELECT 0 AS step, 0 AS value, 0 AS ts, 0 AS place WHERE 0", values


def _page(rows: Iterable[tuple[int, int, dict[str, Any]]], limit: int) -> Rows:
    """Take rows (place, size, row) up to the limit and to a size that a reply can hold."""
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
    """Read a stored `checkpoint_saved`; one that names no path is of no use to anybody."""
    try:
        fields = read_event(orjson.loads(line)).fields
    except ValueError:
        return None
    if not isinstance(path := fields.get("path"), str) or not path:
        return None
    best, score = fields.get("best") is True, as_number(fields.get("score"))
    return SavedCheckpoint(attempt=attempt, host=host, path=path, step=step, ts=ts, best=best, score=score)


def _episode(line: str | bytes) -> dict[str, Any]:
    try:
        fields = read_event(orjson.loads(line)).fields
    except ValueError:  # a bare NaN: what matters is in the columns
        fields = {}
    return {name: _plain(fields.get(name)) for name in _EPISODE_FIELDS}


def _plain(value: object) -> object:
    """What is nested, however deep, is not repeated in a row: it may be more than a reply can carry."""
    return value if value is None or isinstance(value, (str, int, float)) else type(value).__name__


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _text(line: str | bytes) -> str:
    return line if isinstance(line, str) else line.decode("utf-8", "backslashreplace")
