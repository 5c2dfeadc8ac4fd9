"""What the suite found, for people and for programs."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from mosaic_worker.errors import WorkerError

__all__ = ["CheckFailedError", "CheckSkippedError", "Result", "as_json", "as_text", "passed", "totals"]


@dataclass(frozen=True)
class Result:
    """How one check went; `reason` says why it failed or was skipped."""

    id: str
    description: str
    status: Literal["pass", "fail", "skip"]
    reason: str = ""


class CheckFailedError(WorkerError):
    """A check found something wrong."""


class CheckSkippedError(WorkerError):
    """A check does not apply, or could not be made."""


def passed(results: list[Result]) -> bool:
    """Say whether nothing failed."""
    return all(result.status != "fail" for result in results)


def as_json(worker: str, results: list[Result]) -> dict[str, Any]:
    """Give the results as plain values."""
    return {"worker": worker, "ok": passed(results), "checks": [asdict(result) for result in results]}


def as_text(result: Result) -> str:
    """Give a check in one line, and what was wrong below it."""
    line = f"{result.status}  {result.id:17}  {result.description}"
    return "\n".join([line, *(f"      {line}" for line in result.reason.splitlines())])


def totals(worker: str, results: list[Result]) -> str:
    """Count how the checks went."""
    count = {status: sum(result.status == status for result in results) for status in ("pass", "fail", "skip")}
    return f"{worker}: {count['pass']} passed, {count['fail']} failed, {count['skip']} skipped"
