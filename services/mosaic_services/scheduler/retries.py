"""Decides whether a failed run is retried: a pure function of the run and how its attempt ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mosaic_bus.messages import FailureCategory, RunStateName
from mosaic_services.scheduler.wording import number

if TYPE_CHECKING:
    from mosaic_services.scheduler.model import Attempt, Run
    from mosaic_services.scheduler.outcomes import Outcome

__all__ = ["GiveUp", "Retry", "judge", "rest_s"]

# After FLAPS attempts in a row that ended in the same way within FLAP_S seconds, another would end the same way.
FLAPS = 3
FLAP_S = 10.0


@dataclass(frozen=True, slots=True)
class Retry:
    """Another attempt, after a delay."""

    delay_s: float
    reason: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """No further attempt; the reason is empty if nobody would expect one."""

    reason: str


def judge(run: Run, outcome: Outcome, longest_rest_s: float) -> Retry | GiveUp:
    """Decide about a run whose newest attempt has just ended with this outcome."""
    wanted = run.spec.retries
    if outcome.state not in {RunStateName.FAILED, RunStateName.LOST} or run.ending is not None:
        return GiveUp("")
    attempt = run.attempts[-1] if run.attempts else None
    if attempt is None or not wanted.max:
        return GiveUp("")
    # A host that fell silent is an infrastructure failure, too.
    category = FailureCategory.INFRASTRUCTURE if outcome.state is RunStateName.LOST else outcome.category
    if category is FailureCategory.CONFIGURATION:
        return GiveUp("not retried: the same configuration would be refused again")
    if outcome.limit:
        return GiveUp(f"not retried: the same {outcome.limit} limit would stop it again")
    if not {category, outcome.exit_code} & set(wanted.on):
        how = f"{category} failures" + (f" with exit {outcome.exit_code}" if outcome.exit_code else "")
        return GiveUp(f"not retried: {how} are not among retries.on ({', '.join(map(str, wanted.on)) or 'nothing'})")
    if run.begun >= run.allowed:
        return GiveUp(f"not retried: attempt {run.begun} was the last of {run.allowed}")
    if how := _flapping(run):
        return GiveUp(f"not retried: {how}")
    delay = rest_s(run, longest_rest_s)
    saved = run.checkpoint
    step = f" of step {saved.step}" if saved and saved.step is not None else ""
    resumes = f"resumes from its checkpoint{step}" if saved else "starts from the beginning"
    return Retry(delay, f"attempt {run.begun + 1} of {run.allowed} {resumes} in {number(delay)} s")


def rest_s(run: Run, longest_s: float) -> float:
    """Seconds that a run rests after its newest attempt; they double with each attempt, up to a limit."""
    return min(run.spec.retries.delay_s * 2.0 ** (run.begun - 1), longest_s)


def _flapping(run: Run) -> str:
    """Describe how the newest attempts failed, if all failed in the same way soon after their start."""
    newest = [each for each in run.attempts if each.begun][-FLAPS:]
    ways = {_way(each) for each in newest}
    if len(newest) < FLAPS or len(ways) != 1 or not all(_was_short(each) for each in newest):
        return ""
    return f"{FLAPS} attempts in a row ended within {FLAP_S:g} s in the same way ({ways.pop()})"


def _way(attempt: Attempt) -> str:
    report = attempt.exit
    if report is None:
        return attempt.outcome
    if report.signal is not None:
        return f"signal {report.signal}"
    return f"exit {report.code}" if report.code is not None else report.reason


def _was_short(attempt: Attempt) -> bool:
    report = attempt.exit
    return report is not None and report.ended_at - (report.started_at or report.ended_at) < FLAP_S
