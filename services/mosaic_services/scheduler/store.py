"""The scheduler's memory on disk: SQLite, one transaction for all that one turn of the event loop decided."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mosaic_bus.commands import Decision
from mosaic_bus.messages import (
    FINAL_STATES,
    AttemptPhase,
    Checkpoint,
    ExitReport,
    FailureCategory,
    Input,
    Resources,
    RunSpec,
    RunStateName,
)
from mosaic_services.scheduler.errors import StoreError
from mosaic_services.scheduler.instructions import Instruction, RecordDecision, SaveAttempt, SaveRun, SaveSetting
from mosaic_services.scheduler.model import Attempt, Ending, Key, Reference, Run

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Store", "Unsaved"]

_LAYOUT = 1
# Of each run's decisions, the first few and the newest are kept.
DECISIONS_KEPT = 200
_FIRST_KEPT = 20

_TABLES = """
CREATE TABLE runs (
    run TEXT PRIMARY KEY, seq INTEGER NOT NULL UNIQUE, name TEXT NOT NULL, spec TEXT NOT NULL, warnings TEXT NOT NULL,
    submitted_at REAL NOT NULL, changed_at REAL NOT NULL, state TEXT NOT NULL, reason TEXT NOT NULL, category TEXT,
    host TEXT, started_at REAL, ended_at REAL, exit_code INTEGER, detail TEXT NOT NULL,
    ending TEXT, checked TEXT NOT NULL,
    priority INTEGER NOT NULL, after TEXT NOT NULL, next_attempt_at REAL,
    refers TEXT NOT NULL, inputs TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE attempts (
    run TEXT NOT NULL, attempt INTEGER NOT NULL, host TEXT NOT NULL, cpus REAL NOT NULL, memory_mb INTEGER NOT NULL,
    placed_at REAL NOT NULL, acknowledged INTEGER NOT NULL, phase TEXT, started_at REAL, ended_at REAL,
    outcome TEXT NOT NULL, exit TEXT, gpus TEXT NOT NULL, resume TEXT, PRIMARY KEY (run, attempt)
) WITHOUT ROWID;
CREATE TABLE decisions (
    run TEXT NOT NULL, number INTEGER NOT NULL, at REAL NOT NULL, event TEXT NOT NULL, reason TEXT NOT NULL,
    PRIMARY KEY (run, number)
) WITHOUT ROWID;
CREATE TABLE probe (id INTEGER PRIMARY KEY CHECK (id = 1), count INTEGER NOT NULL);
CREATE TABLE settings (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
"""


@dataclass(slots=True)
class Unsaved:
    """What waits to be written: the newest version of each thing."""

    runs: dict[str, Run] = field(default_factory=dict)
    attempts: dict[Key, Attempt] = field(default_factory=dict)
    decisions: list[RecordDecision] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.runs or self.attempts or self.decisions or self.settings)

    def add(self, instruction: Instruction) -> bool:
        """Take an instruction if it is one to save something."""
        match instruction:
            case SaveRun(run=run):
                self.runs[run.id] = run
            case SaveAttempt(attempt=attempt):
                self.attempts[attempt.key] = attempt
            case RecordDecision():
                self.decisions.append(instruction)
            case SaveSetting(key=key, value=value):
                self.settings[key] = value
            case _:
                return False
        return True

    def merge(self, newer: Unsaved) -> None:
        """Add what was decided later."""
        self.runs.update(newer.runs)
        self.attempts.update(newer.attempts)
        self.decisions.extend(newer.decisions)
        self.settings.update(newer.settings)

    def drop(self, run: str) -> None:
        """Leave a run out, as if it had never been."""
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
        """Write all of it or nothing; once this returns, it survives a crash and a loss of power."""
        writer = self._writer
        try:
            writer.execute("BEGIN IMMEDIATE")
            try:
                if not unsaved:
                    writer.execute("INSERT INTO probe VALUES (1, 1) ON CONFLICT DO UPDATE SET count = count + 1")
                writer.executemany(_put("runs", _RUN_COLUMNS), [_run_row(run) for run in unsaved.runs.values()])
                writer.executemany(
                    _put("attempts", _ATTEMPT_COLUMNS), [_attempt_row(each) for each in unsaved.attempts.values()]
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
            runs = {row["run"]: _read_run(row) for row in self._reader.execute("SELECT * FROM runs ORDER BY seq")}
            for row in self._reader.execute("SELECT * FROM attempts ORDER BY run, attempt"):
                runs[row["run"]].attempts.append(_read_attempt(row))
            # SQLite takes the other columns from the row that has the maximum.
            marks = ", ".join("?" * len(FINAL_STATES))
            newest = (
                "SELECT run, max(number) AS number, event, reason FROM decisions "  # noqa: S608 - only question marks
                f"WHERE run IN (SELECT run FROM runs WHERE state NOT IN ({marks})) GROUP BY run"
            )
            for row in self._reader.execute(newest, [state.value for state in FINAL_STATES]):
                runs[row["run"]].decisions = row["number"]
                runs[row["run"]].last_decision = (row["event"], row["reason"])
        except (sqlite3.Error, KeyError, ValueError) as error:
            raise StoreError(str(self.path), f"{type(error).__name__}: {error}") from error
        return list(runs.values())

    def settings(self) -> dict[str, str]:
        """Read what users have set."""
        try:
            return {row["key"]: row["value"] for row in self._reader.execute("SELECT key, value FROM settings")}
        except sqlite3.Error as error:
            raise StoreError(str(self.path), str(error)) from error

    def decisions(self, run: str) -> list[Decision]:
        """Read what was decided about a run, oldest first."""
        try:
            rows = self._reader.execute("SELECT at, event, reason FROM decisions WHERE run = ? ORDER BY number", (run,))
            return [Decision(**dict(row)) for row in rows]
        except sqlite3.Error as error:
            raise StoreError(str(self.path), str(error)) from error


_RUN_COLUMNS = (
    *("run", "seq", "name", "spec", "warnings", "submitted_at", "changed_at", "state", "reason", "category"),
    *("host", "started_at", "ended_at", "exit_code", "detail", "ending", "checked"),
    *("priority", "after", "next_attempt_at", "refers", "inputs"),
)
_ATTEMPT_COLUMNS = (
    *("run", "attempt", "host", "cpus", "memory_mb", "placed_at", "acknowledged", "phase"),
    *("started_at", "ended_at", "outcome", "exit", "gpus", "resume"),
)


def _put(table: str, columns: tuple[str, ...]) -> str:
    names, marks = ", ".join(columns), ", ".join("?" * len(columns))
    return f"INSERT OR REPLACE INTO {table} ({names}) VALUES ({marks})"  # noqa: S608 - the names are ours


def _run_row(run: Run) -> tuple[Any, ...]:
    ending = None
    if run.ending is not None:
        ending = json.dumps([run.ending.state, run.ending.reason, run.ending.category])
    return (
        *(run.id, run.seq, run.name, run.spec.model_dump_json(), json.dumps(run.warnings)),
        *(run.submitted_at, run.changed_at, run.state, run.reason, run.category),
        *(run.host, run.started_at, run.ended_at, run.exit_code, run.detail, ending, run.checked),
        *(run.priority, json.dumps(run.after), run.next_attempt_at),
        json.dumps([[each.field, each.run, each.wanted] for each in run.references]),
        json.dumps([each.model_dump() for each in run.inputs]),
    )


def _read_run(row: sqlite3.Row) -> Run:
    ending = None
    if row["ending"] is not None:
        state, reason, category = json.loads(row["ending"])
        ending = Ending(RunStateName(state), reason, FailureCategory(category) if category else None)
    return Run(
        id=row["run"],
        seq=row["seq"],
        spec=RunSpec.model_validate_json(row["spec"]),
        name=row["name"],
        submitted_at=row["submitted_at"],
        changed_at=row["changed_at"],
        warnings=tuple(json.loads(row["warnings"])),
        state=RunStateName(row["state"]),
        reason=row["reason"],
        category=FailureCategory(row["category"]) if row["category"] else None,
        host=row["host"],
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        exit_code=row["exit_code"],
        detail=row["detail"],
        ending=ending,
        checked=row["checked"],
        priority=row["priority"],
        after=tuple(json.loads(row["after"])),
        next_attempt_at=row["next_attempt_at"],
        references=tuple(
            Reference(tuple(where), source, wanted) for where, source, wanted in json.loads(row["refers"])
        ),
        inputs=tuple(Input.model_validate(each) for each in json.loads(row["inputs"])),
    )


def _attempt_row(attempt: Attempt) -> tuple[Any, ...]:
    return (
        *(attempt.run, attempt.number, attempt.host, attempt.resources.cpus, attempt.resources.memory_mb),
        *(attempt.placed_at, attempt.acknowledged, attempt.phase, attempt.started_at, attempt.ended_at),
        *(attempt.outcome, attempt.exit.model_dump_json() if attempt.exit else None),
        *(json.dumps(attempt.gpus), attempt.resume.model_dump_json() if attempt.resume else None),
    )


def _read_attempt(row: sqlite3.Row) -> Attempt:
    gpus: dict[str, float] = json.loads(row["gpus"])
    return Attempt(
        run=row["run"],
        number=row["attempt"],
        host=row["host"],
        resources=Resources(cpus=row["cpus"], memory_mb=row["memory_mb"], gpus=sum(gpus.values())),
        placed_at=row["placed_at"],
        gpus=gpus,
        resume=Checkpoint.model_validate_json(row["resume"]) if row["resume"] else None,
        acknowledged=bool(row["acknowledged"]),
        phase=AttemptPhase(row["phase"]) if row["phase"] else None,
        started_at=row["started_at"],
        ended_at=row["ended_at"],
        outcome=row["outcome"],
        exit=ExitReport.model_validate_json(row["exit"]) if row["exit"] else None,
    )
