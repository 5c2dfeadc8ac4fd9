"""The folder of one attempt: everything that must survive the supervisor is a file in it."""

from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import Field, FiniteFloat

from mosaic_bus.commands import FrameStream, FrameStreamsResult
from mosaic_bus.logs import Logger
from mosaic_bus.messages import Checkpoint, ExitReport, FailureCategory, Limits, Model, RunSpec
from mosaic_services.supervisor.run_host import write_json

if TYPE_CHECKING:
    from pathlib import Path

    from mosaic_services.home import StackHome

__all__ = ["AttemptFolder", "AttemptKey", "Placement"]

_log = Logger()

_LOG_LINES_REPORTED = 20
_TAIL_BYTES = 64 * 1024
_LONGEST_REASON = 500
_SIGKILL = 9
_EXIT_CONFIGURATION = 2
_EXIT_NOT_STARTED = 127
# So much must be free for an attempt to begin: what is written before its worker starts is a few kilobytes.
_ROOM_BYTES = 1024 * 1024

Shape = TypeVar("Shape", bound=Model)


class _RunHost(Model):
    """What of `host.json` is used here."""

    pid: int = Field(gt=0, lt=2**31)
    start_time: int
    boot: str = ""
    started_at: FiniteFloat
    warm: bool = False


class _Order(Model):
    """What of `attempt.json` is used here."""

    can_resume: bool = False


class _StopNote(Model):
    """What stands in `stop.json`."""

    reason: str


@dataclass(frozen=True, slots=True, order=True)
class AttemptKey:
    """Names one attempt of one run."""

    run: str
    attempt: int

    def __str__(self) -> str:
        return f"{self.run}.{self.attempt}"


@dataclass(frozen=True, slots=True)
class Placement:
    """What the scheduler asked for when it placed an attempt here."""

    name: str
    spec: RunSpec
    gpus: dict[str, float] = field(default_factory=dict)
    resume: Checkpoint | None = None


class AttemptFolder:
    """`<home>/runs/<run>/<attempt>/`, and the note in `<home>/active/` that says it is not done with yet."""

    def __init__(self, home: StackHome, key: AttemptKey) -> None:
        self.key = key
        self.path = home.runs / key.run / str(key.attempt)
        self._note = home.path / "active" / str(key)
        self._stop_reason: str | None = None
        # Files that have been complained about.
        self._complained: set[str] = set()

    @classmethod
    def active(cls, home: StackHome) -> list[AttemptFolder]:
        """All attempts of this home that are not done with: running, unreported, or not yet stored whole."""
        notes = sorted(note for note in (home.path / "active").glob("*.*") if note.suffix[1:].isdecimal())
        return [cls(home, AttemptKey(note.stem, int(note.suffix[1:]))) for note in notes]

    @classmethod
    def last_of(cls, home: StackHome, run: str) -> AttemptFolder | None:
        """The newest attempt of a run that was on this host."""
        try:
            numbers = [int(each.name) for each in (home.runs / run).iterdir() if each.name.isdecimal()]
        except (FileNotFoundError, NotADirectoryError):
            return None
        return cls(home, AttemptKey(run, max(numbers))) if numbers else None

    @property
    def journal(self) -> Path:
        """What the worker writes to stdout."""
        return self.path / "journal.jsonl"

    @property
    def log(self) -> Path:
        """What the worker and its libraries write to stderr."""
        return self.path / "log.txt"

    def place(self, placement: Placement) -> None:
        """Make the folder; from here on a restarted supervisor knows of the attempt."""
        spec, resume = placement.spec, placement.resume
        self.path.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(self.path).free < _ROOM_BYTES:
            # Better not begun, and tried again later, than failed half-way.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._note.parent.mkdir(exist_ok=True)
        write_json(
            str(self.path / "placed.json"),
            {
                "name": placement.name,
                "spec": spec.model_dump(mode="json"),
                "gpus": placement.gpus,
                "resume": resume.model_dump() if resume else None,
            },
        )
        order = {
            "run_id": self.key.run,
            "run_name": placement.name,
            "attempt": self.key.attempt,
            "metadata": {
                "worker": {"name": spec.worker, "profile": spec.profile, "config": spec.config},
            },
        }
        if resume is not None and os.path.exists(resume.path):  # noqa: PTH110 - what cannot be looked at is not there
            order["resume"] = resume.model_dump()
        elif resume is not None:
            with self.log.open("a") as log:
                log.write(f"mosaic: checkpoint {resume.path} is not on this host: starting from the beginning\n")
        write_json(str(self.path / "worker.json"), order)
        self._note.touch()

    def placed(self) -> Placement | None:
        """What it was placed with."""
        found = self._read("placed.json")
        if found is None:
            return None
        resume = Checkpoint.model_validate(found["resume"]) if found.get("resume") else None
        return Placement(found["name"], RunSpec.model_validate(found["spec"]), found.get("gpus", {}), resume)

    def order(self, argv: list[str], grace_s: float, limits: Limits | None = None, *, can_resume: bool = False) -> None:
        """Write what the run host is to start; the environment variables, secrets perhaps, are not left on disk."""
        content = {
            "argv": argv,
            "cwd": str(self.path),
            "grace_s": grace_s,
            "limits": limits.model_dump() if limits else {},
            "can_resume": can_resume,
        }
        write_json(str(self.path / "attempt.json"), content)

    def can_resume(self) -> bool:
        """Whether its worker says that another attempt could go on from one of its checkpoints."""
        found = self._read_as(_Order, "attempt.json")
        return found is not None and found.can_resume

    def has_begun(self) -> bool:
        """Whether the worker has written anything."""
        return self.journal.exists() and self.journal.stat().st_size > 0

    def warnings(self) -> list[str]:
        """The limits that it comes, or came, close to."""
        try:
            found = (self._read("warnings.json") or {}).get("warnings")
        except (OSError, ValueError, AttributeError):  # The worker's own files lie in the same folder.
            return []
        return list(map(str, found)) if isinstance(found, list) else []

    def host(self) -> dict[str, Any] | None:
        """Which process is the run host: pid and start time; None before it has started."""
        found = self._read_as(_RunHost, "host.json")
        return found.model_dump(exclude_unset=True) if found else None

    def ask_to_stop(self, reason: str) -> None:
        """Remember that the attempt is to stop, and the first reason why."""
        self._stop_reason = self.stop_reason() or reason  # Known here even if it cannot be written.
        if self._read_as(_StopNote, "stop.json") is None:
            write_json(str(self.path / "stop.json"), {"reason": self._stop_reason})

    def stop_reason(self) -> str | None:
        """Why it was asked to stop, if it was."""
        if self._stop_reason is not None:
            return self._stop_reason
        found = self._read_as(_StopNote, "stop.json")
        return found.reason if found else None

    def end_without_start(self, report: ExitReport) -> None:
        """Record the end of an attempt that no run host has ended: it never started, or its run host died."""
        write_json(str(self.path / "exit.json"), report.model_dump(mode="json"))

    def exit(self) -> ExitReport | None:
        """How it ended, with a reason in words; None while it has not.

        To be asked once the run host is gone, who writes it last: until then, it may be a file of the worker's own.
        """
        report = self._read_as(ExitReport, "exit.json")
        if report is None:
            return None
        if report.limit is not None:
            update: dict[str, Any] = {"category": FailureCategory.APPLICATION, "last_lines": self.last_log_lines()}
            return report.model_copy(update=update)
        if report.reason:
            return report
        seconds = report.ended_at - (report.started_at or report.ended_at)
        after = f"after {int(seconds // 3600):02}:{int(seconds // 60 % 60):02}:{int(seconds % 60):02}"
        if report.stopped and (why := self.stop_reason()) is not None:
            return report.model_copy(update={"reason": f"{why} ({after})"})
        if report.code == 0 and not report.stopped:
            return report.model_copy(update={"reason": f"finished {after}"})
        category, reason = self._why_failed(report)
        update = {"category": category, "reason": f"{reason} {after}", "last_lines": self.last_log_lines()}
        return report.model_copy(update={**update, "stopped": False})

    def _why_failed(self, report: ExitReport) -> tuple[FailureCategory, str]:
        if report.stopped:
            return FailureCategory.INFRASTRUCTURE, "stopped by a signal that did not come from MOSAIC"
        if report.signal is not None:
            killed = report.signal == _SIGKILL
            category = FailureCategory.INFRASTRUCTURE if killed else FailureCategory.APPLICATION
            hint = " (SIGKILL: by somebody, or by the kernel for want of memory)" if killed else ""
            return category, f"killed by signal {report.signal}{hint}"
        if report.code == _EXIT_NOT_STARTED:
            return FailureCategory.INFRASTRUCTURE, "the worker could not be started: exit 127"
        by_code = FailureCategory.CONFIGURATION if report.code == _EXIT_CONFIGURATION else FailureCategory.APPLICATION
        said = self._last_event()
        if said.get("event") == "run_failed":
            known = said.get("category") in list(FailureCategory)
            category = FailureCategory(said["category"]) if known else by_code
            return category, f"{str(said.get('error'))[:_LONGEST_REASON].rstrip('.')}: exit {report.code}"
        return by_code, f"exit {report.code}"

    def _last_event(self) -> dict[str, Any]:
        lines = _tail(self.journal)
        try:
            event = json.loads(lines[-1]) if lines else {}
        except (ValueError, RecursionError):
            return {}
        return event if isinstance(event, dict) else {}

    def why_run_host_died(self) -> str:
        """The run host's own last words, if it had any."""
        words = _tail(self.path / "host-errors.txt")[-1:] or ["it left no word"]
        return f"its run host died, and the worker with it: {words[0][:500]}"

    def keep_frames(self, streams: list[FrameStream]) -> None:
        """Note what its streams of pictures came to; the pictures are gone."""
        write_json(str(self.path / "frames.json"), FrameStreamsResult(streams=streams).model_dump(mode="json"))

    def frames(self) -> list[FrameStream]:
        """The streams of pictures that it had, if it has ended."""
        found = self._read_as(FrameStreamsResult, "frames.json")
        return found.streams if found else []

    def last_log_lines(self) -> list[str]:
        """The end of the log, for people."""
        return [line[:500] for line in _tail(self.log)[-_LOG_LINES_REPORTED:]]

    def mark(self, what: str) -> None:
        """Note that the scheduler has recorded the end (`forgotten`) or that every line is stored (`stored`)."""
        try:
            (self.path / what).touch()
        except FileNotFoundError:
            self.drop_note()  # The folder was removed: there is nothing left to look after.
            return
        if self.is_marked("forgotten") and self.is_marked("stored"):
            self._note.unlink(missing_ok=True)

    def is_marked(self, what: str) -> bool:
        """Whether a mark was made."""
        return (self.path / what).exists()

    def drop_note(self) -> None:
        """Stop tracking a folder that is gone or was never filled."""
        self._note.unlink(missing_ok=True)

    def _read(self, name: str) -> dict[str, Any] | None:
        try:
            found = json.loads((self.path / name).read_bytes())
        except FileNotFoundError:
            return None
        except (RecursionError, IsADirectoryError) as error:
            raise ValueError(str(error)) from None
        if not isinstance(found, dict):
            raise ValueError("it holds no JSON object")  # noqa: TRY004 - as of all else that is wrong in a file
        return found

    def _read_as(self, shape: type[Shape], name: str) -> Shape | None:
        """Read a file that should have some shape; what has not counts as not there, and is said once.

        The worker's own files lie in the same folder, and may have names of ours.
        """
        try:
            found = self._read(name)
            return None if found is None else shape.model_validate(found)
        except ValueError as error:
            if name not in self._complained:
                self._complained.add(name)
                _log.warning("not as we write it", file=str(self.path / name), reason=str(error))
            return None


def _tail(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            # Not splitlines(): it also splits at characters that may stand inside a line of JSON.
            text = file.read(_TAIL_BYTES).decode("utf-8", "replace").removesuffix("\n")
            return text.split("\n") if text else []
    except FileNotFoundError:
        return []
