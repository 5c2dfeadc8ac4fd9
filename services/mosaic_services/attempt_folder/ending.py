"""Explains how an attempt ended, from its exit record, its last event and the end of its log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mosaic_bus.messages import ExitReport, FailureCategory
from mosaic_services.attempt_folder.layout import clock
from mosaic_worker.events import Kind, read_line

if TYPE_CHECKING:
    from pathlib import Path

    from mosaic_worker.events import Event

__all__ = ["explain", "last_lines"]

# Bounds of what a report quotes: lines of the log, bytes searched for them, characters of one line.
_LOG_LINES_REPORTED = 20
_TAIL_BYTES = 64 * 1024
_LONGEST_REASON = 500
_SIGKILL = 9
_EXIT_CONFIGURATION = 2
_EXIT_NOT_STARTED = 127


def explain(report: ExitReport, stop_reason: str | None, journal: Path, log: Path) -> ExitReport:
    """Add the reason, the failure category and the last lines of the log to an exit record."""
    if report.limit is not None:
        return report.model_copy(update={"category": FailureCategory.APPLICATION, "last_lines": _end_of(log)})
    if report.reason:
        return report
    after = f"after {clock(report.ended_at - (report.started_at or report.ended_at))}"
    if report.stopped and stop_reason is not None:
        return report.model_copy(update={"reason": f"{stop_reason} ({after})"})
    if report.code == 0 and not report.stopped:
        return report.model_copy(update={"reason": f"finished {after}"})
    category, reason = _why_failed(report, journal)
    update: dict[str, Any] = {"category": category, "reason": f"{reason} {after}", "last_lines": _end_of(log)}
    return report.model_copy(update={**update, "stopped": False})


def _why_failed(report: ExitReport, journal: Path) -> tuple[FailureCategory, str]:
    if report.stopped:
        return FailureCategory.INFRASTRUCTURE, "stopped by a signal that did not come from MOSAIC"
    if report.signal is not None:
        killed = report.signal == _SIGKILL
        category = FailureCategory.INFRASTRUCTURE if killed else FailureCategory.APPLICATION
        hint = " (SIGKILL from outside, or the OOM killer)" if killed else ""
        return category, f"killed by signal {report.signal}{hint}"
    if report.code == _EXIT_NOT_STARTED:
        return FailureCategory.INFRASTRUCTURE, "the worker could not be started: exit 127"
    by_code = FailureCategory.CONFIGURATION if report.code == _EXIT_CONFIGURATION else FailureCategory.APPLICATION
    said = _last_event(journal)
    if said is not None and said.kind == Kind.RUN_FAILED:
        known = said.text("category") in list(FailureCategory)
        category = FailureCategory(said.text("category")) if known else by_code
        return category, f"{said.text('error').rstrip('.')}: exit {report.code}"
    return by_code, f"exit {report.code}"


def _last_event(journal: Path) -> Event | None:
    lines = last_lines(journal)
    return read_line(lines[-1]) if lines else None


def _end_of(log: Path) -> list[str]:
    return [line[:_LONGEST_REASON] for line in last_lines(log)[-_LOG_LINES_REPORTED:]]


def last_lines(path: Path) -> list[str]:
    """Return the lines in the last 64 KiB of a file; none if there is no such file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            # Not splitlines(), which also splits at characters that JSON allows inside a string.
            text = file.read(_TAIL_BYTES).decode("utf-8", "replace").removesuffix("\n")
            return text.split("\n") if text else []
    except FileNotFoundError:
        return []
