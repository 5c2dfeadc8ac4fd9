"""The folder of one attempt. Everything that must survive the supervisor is a file in it."""

from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import Field, FiniteFloat

from mosaic_bus.commands import FrameStream, FrameStreamsResult, Place
from mosaic_bus.logs import FirstTime, Logger
from mosaic_bus.messages import ExitReport, Model
from mosaic_services.attempt_folder import layout
from mosaic_services.attempt_folder.ending import explain, last_lines
from mosaic_services.attempt_folder.layout import write_json

if TYPE_CHECKING:
    from pathlib import Path

    from mosaic_services.home import StackHome

__all__ = ["AttemptFolder", "AttemptKey"]

_log = Logger()

# Free bytes that a disk must have for an attempt to begin. Its own files take a few kilobytes.
_ROOM_BYTES = 1024 * 1024
_UNKNOWN_GRACE_S = 30.0

Shape = TypeVar("Shape", bound=Model)


class _RunHost(Model):
    """The fields of `host.json` that are read here."""

    pid: int = Field(gt=0, lt=2**31)
    start_time: int
    boot: str = ""
    started_at: FiniteFloat
    warm: bool = False


class _Order(Model):
    """The fields of `attempt.json` that are read here."""

    can_resume: bool = False


class _StopNote(Model):
    """The content of `stop.json`."""

    reason: str


@dataclass(frozen=True, slots=True, order=True)
class AttemptKey:
    """Identifies one attempt of one run."""

    run: str
    attempt: int

    def __str__(self) -> str:
        return f"{self.run}.{self.attempt}"


class AttemptFolder:
    """`<home>/runs/<run>/<attempt>/`, and the file in `<home>/active/` that marks the attempt as unfinished."""

    def __init__(self, home: StackHome, key: AttemptKey) -> None:
        self.key = key
        self.path = home.runs / key.run / str(key.attempt)
        self._note = home.path / "active" / str(key)
        self._stop_reason: str | None = None
        # Files that were reported as invalid.
        self._first_time = FirstTime()

    @classmethod
    def active(cls, home: StackHome) -> list[AttemptFolder]:
        """Return the unfinished attempts of a home: running, not yet reported, or not yet stored."""
        notes = sorted(note for note in (home.path / "active").glob("*.*") if note.suffix[1:].isdecimal())
        return [cls(home, AttemptKey(note.stem, int(note.suffix[1:]))) for note in notes]

    @classmethod
    def last_of(cls, home: StackHome, run: str) -> AttemptFolder | None:
        """Return the newest attempt of a run on this host."""
        try:
            numbers = [int(each.name) for each in (home.runs / run).iterdir() if each.name.isdecimal()]
        except (FileNotFoundError, NotADirectoryError):
            return None
        return cls(home, AttemptKey(run, max(numbers))) if numbers else None

    @property
    def process_mark(self) -> str:
        """The value of `MOSAIC_ATTEMPT_MARK` in the environment of each process of the attempt."""
        return str(self.path)

    @property
    def journal(self) -> Path:
        """The worker's stdout."""
        return self.path / layout.JOURNAL

    @property
    def stdin(self) -> Path:
        """The FIFO that an interactive worker reads; exists while its run host does."""
        return self.path / layout.STDIN

    @property
    def log(self) -> Path:
        """The stderr of the worker and its libraries."""
        return self.path / layout.LOG

    def place(self, command: Place, log_head: int = layout.LOG_HEAD_BYTES) -> None:
        """Make the folder. From now on a restarted supervisor finds the attempt.

        `log_head` stays the same for the whole attempt, since the numbers of log lines depend on it.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(self.path).free < _ROOM_BYTES:
            # Refuse the attempt now rather than fail half-way.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._note.parent.mkdir(exist_ok=True)
        write_json(str(self.path / layout.PLACED), {**command.model_dump(mode="json"), "log_head": log_head})
        self._note.touch()

    def placed(self) -> Place | None:
        """Return the command that placed the attempt."""
        found = self._read(layout.PLACED)
        if found is None:
            return None
        return Place.model_validate({name: value for name, value in found.items() if name != "log_head"})

    def log_head(self) -> int:
        """Return how many bytes of the beginning of its log are kept."""
        return int((self._read(layout.PLACED) or {}).get("log_head", layout.LOG_HEAD_BYTES))

    def order(self, placed: Place, argv: list[str], uses: list[dict[str, Any]], *, can_resume: bool) -> None:
        """Write the files for the worker and the run host.

        Environment variables are not written to disk, since there may be secrets in them.
        """
        spec, resume = placed.spec, placed.resume
        document: dict[str, Any] = {
            "run_id": self.key.run,
            "run_name": placed.run_name,
            "attempt": self.key.attempt,
            "metadata": {"worker": {"name": spec.worker, "profile": spec.profile, "config": spec.config}},
        }
        if spec.interactive:
            document["interactive"] = True
        if uses:
            document["uses"] = uses
        if resume is not None and os.path.exists(resume.path):  # noqa: PTH110 - Path.exists raises for what no file can be called
            document["resume"] = resume.model_dump()
        elif resume is not None:
            with self.log.open("a") as log:
                log.write(f"mosaic: checkpoint {resume.path} is not on this host: starting from the beginning\n")
        write_json(str(self.path / layout.WORKER), document)
        content = {
            "argv": argv,
            "cwd": str(self.path),
            "grace_s": spec.grace_s,
            "limits": spec.limits.model_dump(),
            "interactive": spec.interactive,
            "can_resume": can_resume,
            "log_head": self.log_head(),
        }
        write_json(str(self.path / layout.ATTEMPT), content)

    def can_resume(self) -> bool:
        """Whether the worker can resume from a checkpoint."""
        found = self._read_as(_Order, layout.ATTEMPT)
        return found is not None and found.can_resume

    def grace_s(self) -> float:
        """Return the grace period in seconds."""
        for name in (layout.ATTEMPT, layout.PLACED):
            try:
                found = self._read(name) or {}
                return float(found["grace_s"] if name == layout.ATTEMPT else found["spec"]["grace_s"])
            except (OSError, ValueError, KeyError, TypeError):
                continue
        return _UNKNOWN_GRACE_S

    def has_begun(self) -> bool:
        """Whether the worker has written anything."""
        return self.journal.exists() and self.journal.stat().st_size > 0

    def warnings(self) -> list[str]:
        """Return the warnings about limits that the attempt came close to."""
        try:
            found = (self._read(layout.WARNINGS) or {}).get("warnings")
        except (OSError, ValueError, AttributeError):  # It may be a file of the worker's own.
            return []
        return list(map(str, found)) if isinstance(found, list) else []

    def host(self) -> dict[str, Any] | None:
        """Return the identity of the run host, with `started_at` and `warm`; None before it has started."""
        found = self._read_as(_RunHost, layout.HOST)
        return found.model_dump(exclude_unset=True) if found else None

    def ask_to_stop(self, reason: str) -> None:
        """Record that the attempt should stop. The first reason is kept."""
        self._stop_reason = self.stop_reason() or reason  # Kept in memory in case the disk is full.
        if self._read_as(_StopNote, layout.STOP) is None:
            write_json(str(self.path / layout.STOP), {"reason": self._stop_reason})

    def stop_reason(self) -> str | None:
        """Return why the attempt should stop; None if it should not."""
        if self._stop_reason is not None:
            return self._stop_reason
        found = self._read_as(_StopNote, layout.STOP)
        return found.reason if found else None

    def end_without_start(self, report: ExitReport) -> None:
        """Record the end of an attempt that never started or whose run host died."""
        write_json(str(self.path / layout.EXIT), report.model_dump(mode="json"))
        self.stdin.unlink(missing_ok=True)

    def exit(self) -> ExitReport | None:
        """Return how the attempt ended, with a reason in words; None if it has not.

        Only valid once the run host, which writes the file last, is gone. Before that, it may be a file of the
        worker's own.
        """
        report = self._read_as(ExitReport, layout.EXIT)
        return explain(report, self.stop_reason(), self.journal, self.log) if report else None

    def has_exit(self) -> bool:
        """Whether there is an exit record."""
        return (self.path / layout.EXIT).exists()

    def why_run_host_died(self) -> str:
        """Return a reason with the last line that the run host printed."""
        words = last_lines(self.path / layout.HOST_ERRORS)[-1:] or ["it printed nothing"]
        return f"its run host died, and the worker with it: {words[0][:500]}"

    def keep_frames(self, streams: list[FrameStream]) -> None:
        """Record the last state of the frame streams; the frames are gone."""
        write_json(str(self.path / layout.FRAMES), FrameStreamsResult(streams=streams).model_dump(mode="json"))

    def frames(self) -> list[FrameStream]:
        """Return the frame streams of an attempt that has ended."""
        found = self._read_as(FrameStreamsResult, layout.FRAMES)
        return found.streams if found else []

    def mark(self, what: str) -> None:
        """Note that the scheduler has recorded the end (`forgotten`) or that every line is stored (`stored`)."""
        try:
            (self.path / what).touch()
        except FileNotFoundError:
            self.drop_note()  # The folder was removed.
            return
        if self.is_marked(layout.FORGOTTEN) and self.is_marked(layout.STORED):
            self._note.unlink(missing_ok=True)

    def is_marked(self, what: str) -> bool:
        """Whether `mark` was called with this."""
        return (self.path / what).exists()

    def drop_note(self) -> None:
        """Remove the file in `active/`."""
        self._note.unlink(missing_ok=True)

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            found = json.loads((self.path / name).read_bytes())
        except FileNotFoundError:
            return None
        except (RecursionError, IsADirectoryError) as error:
            raise ValueError(str(error)) from None
        if not isinstance(found, dict):
            raise ValueError("it holds no JSON object")  # noqa: TRY004 - like other malformed files
        return found

    def _read_as(self, shape: type[Shape], name: str) -> Shape | None:
        """Read and validate a file; log an invalid one once and treat it as missing.

        It may be a file of the worker's own, which has the same folder.
        """
        try:
            found = self._read(name)
            return None if found is None else shape.model_validate(found)
        except ValueError as error:
            if self._first_time(name):
                _log.warning("invalid file in the folder of an attempt", file=str(self.path / name), reason=str(error))
            return None
