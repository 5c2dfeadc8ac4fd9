"""The scheduler's SQLite store: one transaction per turn of the event loop."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from mosaic_bus.commands import Decision
from mosaic_services.scheduler.errors import StoreError
from mosaic_services.scheduler.instructions import (
    DeleteRun,
    Instruction,
    RecordDecision,
    SaveAttempt,
    SaveRun,
    SaveSetting,
)
from mosaic_services.scheduler.model import NOT_STORED, Attempt, Key, Run

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Store", "Unsaved"]

_LAYOUT = 3
# Decisions kept per run: the first _FIRST_KEPT and the newest.
DECISIONS_KEPT = 200
_FIRST_KEPT = 20

_TABLES = """
CREATE TABLE runs (
    run TEXT PRIMARY KEY, seq INTEGER NOT NULL UNIQUE, final INTEGER NOT NULL, body TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE attempts (
    run TEXT NOT NULL, attempt INTEGER NOT NULL, body TEXT NOT NULL, PRIMARY KEY (run, attempt)
) WITHOUT ROWID;
CREATE TABLE decisions (
    run TEXT NOT NULL, number INTEGER NOT NULL, at REAL NOT NULL, event TEXT NOT NULL, reason TEXT NOT NULL,
    PRIMARY KEY (run, number)
) WITHOUT ROWID;
CREATE TABLE probe (id INTEGER PRIMARY KEY CHECK (id = 1), count INTEGER NOT NULL);
CREATE TABLE settings (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""


_RUN = TypeAdapter(Run)
_ATTEMPT = TypeAdapter(Attempt)


def _body(kind: TypeAdapter[Any], thing: Run | Attempt) -> str:
    return kind.dump_json(thing, exclude=NOT_STORED).decode()


@dataclass(slots=True)
class Unsaved:
    """What is to be written: the newest version of each run, attempt and setting, and all decisions."""

    runs: dict[str, Run] = field(default_factory=dict)
    attempts: dict[Key, Attempt] = field(default_factory=dict)
    decisions: list[RecordDecision] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)  # before anything else is written

    def __bool__(self) -> bool:
        return bool(self.runs or self.attempts or self.decisions or self.settings or self.deleted)

    def add(self, instruction: Instruction) -> bool:
        """Add an instruction if it is one to save something; return whether it is."""
        match instruction:
            case SaveRun(run=run):
                self.runs[run.id] = run
            case SaveAttempt(attempt=attempt):
                self.attempts[attempt.key] = attempt
            case RecordDecision():
                self.decisions.append(instruction)
            case SaveSetting(key=key, value=value):
                self.settings[key] = value
            case DeleteRun(run=deleted):
                self.drop(deleted)
                self.deleted.add(deleted)
            case _:
                return False
        return True

    def merge(self, newer: Unsaved) -> None:
        """Add what was decided later."""
        for run in newer.deleted:
            self.drop(run)
        self.deleted |= newer.deleted
        self.runs.update(newer.runs)
        self.attempts.update(newer.attempts)
        self.decisions.extend(newer.decisions)
        self.settings.update(newer.settings)

    def drop(self, run: str) -> None:
        """Leave a run out."""
        self.runs.pop(run, None)
        self.attempts = {key: attempt for key, attempt in self.attempts.items() if key[0] != run}
        self.decisions = [each for each in self.decisions if each.run != run]


class Store:
    """An open store. `commit` is called from one thread at a time; reading has a connection of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            self._writer = self._connect()
            self._reader = self._connect()
        except sqlite3.Error as error:
            raise StoreError(str(path), str(error)) from error
        try:
            self._prepare()
        except sqlite3.Error as error:
            self.close()
            raise StoreError(str(path), str(error)) from error
        except StoreError:
            self.close()
            raise

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=5.0)
        connection.row_factory = sqlite3.Row
        return connection

    def _prepare(self) -> None:
        self._writer.execute("PRAGMA journal_mode=WAL")
        self._writer.execute("PRAGMA synchronous=FULL")
        (layout,) = self._writer.execute("PRAGMA user_version").fetchone()
        if layout == 0:
            self._writer.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version={_LAYOUT}; COMMIT;")
        elif layout != _LAYOUT:
            raise StoreError(str(self.path), f"it has layout {layout}, this version reads {_LAYOUT}")

    def close(self) -> None:
        """Close both connections."""
        self._writer.close()
        self._reader.close()

    # ── writing ─────────────────────────────────────────────────────────────────────────────────

    def commit(self, unsaved: Unsaved) -> None:
        """Write everything or nothing. Once this returns, it survives a crash and a power failure."""
        writer = self._writer
        try:
            writer.execute("BEGIN IMMEDIATE")
            try:
                if not unsaved:
                    writer.execute("INSERT INTO probe VALUES (1, 1) ON CONFLICT DO UPDATE SET count = count + 1")
                for table in ("runs", "attempts", "decisions"):
                    gone = [(run,) for run in unsaved.deleted]
                    writer.executemany(f"DELETE FROM {table} WHERE run = ?", gone)  # noqa: S608 - a constant
                writer.executemany(
                    "INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?)",
                    [(run.id, run.seq, run.final, _body(_RUN, run)) for run in unsaved.runs.values()],
                )
                writer.executemany(
                    "INSERT OR REPLACE INTO attempts VALUES (?, ?, ?)",
                    [(each.run, each.number, _body(_ATTEMPT, each)) for each in unsaved.attempts.values()],
                )
                writer.executemany(
                    "INSERT OR REPLACE INTO decisions VALUES (?, ?, ?, ?, ?)",
                    [(each.run, each.number, each.at, each.event, each.reason) for each in unsaved.decisions],
                )
                writer.executemany(
                    "DELETE FROM decisions WHERE run = ? AND number = ?",
                    [
                        (each.run, each.number - DECISIONS_KEPT + _FIRST_KEPT)
                        for each in unsaved.decisions
                        if each.number > DECISIONS_KEPT
                    ],
                )
                writer.executemany("INSERT OR REPLACE INTO settings VALUES (?, ?)", unsaved.settings.items())
                writer.execute("DELETE FROM settings WHERE value = ''")
                writer.execute("COMMIT")
            except BaseException:
                if writer.in_transaction:
                    writer.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise StoreError(str(self.path), str(error)) from error

    # ── reading ─────────────────────────────────────────────────────────────────────────────────

    def load(self) -> list[Run]:
        """Read every run, oldest first, with its attempts."""
        try:
            rows = self._reader.execute("SELECT run, body FROM runs ORDER BY seq")
            runs = {row["run"]: _RUN.validate_json(row["body"]) for row in rows}
            for row in self._reader.execute("SELECT run, body FROM attempts ORDER BY run, attempt"):
                runs[row["run"]].attempts.append(_ATTEMPT.validate_json(row["body"]))
            # SQLite takes the other columns from the row that has the maximum.
            newest = (
                "SELECT run, max(number) AS number, event, reason FROM decisions "
                "WHERE run IN (SELECT run FROM runs WHERE NOT final) GROUP BY run"
            )
            for row in self._reader.execute(newest):
                runs[row["run"]].decisions = row["number"]
                runs[row["run"]].last_decision = (row["event"], row["reason"])
        except (sqlite3.Error, KeyError, ValueError) as error:
            raise StoreError(str(self.path), f"{type(error).__name__}: {error}") from error
        return list(runs.values())

    def settings(self) -> dict[str, str]:
        """Read the settings of users."""
        try:
            return {row["key"]: row["value"] for row in self._reader.execute("SELECT key, value FROM settings")}
        except sqlite3.Error as error:
            raise StoreError(str(self.path), str(error)) from error

    def decisions(self, run: str) -> list[Decision]:
        """Read the decisions about a run, oldest first."""
        try:
            rows = self._reader.execute("SELECT at, event, reason FROM decisions WHERE run = ? ORDER BY number", (run,))
            return [Decision(**dict(row)) for row in rows]
        except sqlite3.Error as error:
            raise StoreError(str(self.path), str(error)) from error
