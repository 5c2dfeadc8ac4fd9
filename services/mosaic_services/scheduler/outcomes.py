"""Derives the outcome of a run from the end of its attempt: pure functions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mosaic_bus.messages import FailureCategory, RunStateName
from mosaic_bus.refusals import RefusalCode
from mosaic_bus.wording import duration

if TYPE_CHECKING:
    from mosaic_bus.errors import CommandRefusedError
    from mosaic_bus.messages import ExitReport
    from mosaic_services.scheduler.model import Ending

__all__ = ["NOT_NOW", "Outcome", "of_exit", "of_refusal"]

# Refusals by which a host says that it cannot take an attempt now. All others are final.
NOT_NOW = frozenset({RefusalCode.STOPPING, RefusalCode.HOST_UNAVAILABLE})
_CONFIGURATION_REFUSALS = frozenset(
    {
        RefusalCode.UNKNOWN_WORKER,
        RefusalCode.UNKNOWN_PROFILE,
        RefusalCode.INVALID_CONFIG,
        RefusalCode.INVALID_ARGUMENTS,
        RefusalCode.IMPOSSIBLE_RESOURCES,
        RefusalCode.MISSING_FILE,
    }
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The final state of a run, and why."""

    state: RunStateName
    reason: str
    category: FailureCategory | None = None
    exit_code: int | None = None
    detail: str = ""
    ended_at: float | None = None
    limit: str | None = None


def of_exit(exit_report: ExitReport | None, ending: Ending | None, host: str) -> Outcome:
    """The outcome of an attempt that its host reports as ended."""
    if exit_report is None:
        reason = f"host {host} says it ended, but not how"
        return Outcome(RunStateName.FAILED, reason, FailureCategory.INFRASTRUCTURE)
    code, ended_at = exit_report.code, exit_report.ended_at
    if exit_report.stopped:
        if ending is not None:
            return Outcome(ending.state, ending.reason, ending.category, code, ended_at=ended_at)
        reason = exit_report.reason or f"stopped on {host}"
        return Outcome(RunStateName.CANCELLED, reason, exit_code=code, ended_at=ended_at)
    how = _how(exit_report)
    if code == 0 and exit_report.category is None:
        return Outcome(RunStateName.SUCCEEDED, how, exit_code=code, ended_at=ended_at)
    reason = exit_report.reason or how
    # The host names the category; one that does not is itself at fault.
    category = exit_report.category or FailureCategory.INFRASTRUCTURE
    detail = "\n".join(exit_report.last_lines)
    return Outcome(RunStateName.FAILED, reason, category, code, detail, ended_at, exit_report.limit)


def of_refusal(refusal: CommandRefusedError, host: str, ending: Ending | None) -> Outcome:
    """The outcome of an attempt that its host refused."""
    if ending is not None:
        return Outcome(ending.state, ending.reason, ending.category)
    fault = FailureCategory.CONFIGURATION if refusal.code in _CONFIGURATION_REFUSALS else FailureCategory.INFRASTRUCTURE
    return Outcome(RunStateName.FAILED, f"host {host} refused it: {refusal.message} ({refusal.code})", fault)


def _how(report: ExitReport) -> str:
    if report.code is None and report.signal is None:
        return "it never started"
    how = f"exit {report.code}" if report.code is not None else f"killed by signal {report.signal}"
    if report.started_at is None:
        return how
    return f"{how} after {duration(report.ended_at - report.started_at)}"
