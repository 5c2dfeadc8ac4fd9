"""The results of the suite, as text and as JSON."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from mosaic_worker.errors import WorkerError

__all__ = ["CheckFailedError", "CheckSkippedError", "Result", "as_json", "as_text", "passed", "totals"]


@dataclass(frozen=True)
class Result:
    """The result of one check; `reason` says why it failed or was skipped."""

    id: str
    description: str
    status: Literal["pass", "fail", "skip"]
    reason: str = ""


class CheckFailedError(WorkerError):
    """A check found something wrong."""


class CheckSkippedError(WorkerError):
    """A check does not apply, or was impossible."""


def passed(results: list[Result]) -> bool:
    """Whether no check failed."""
    return all(result.status != "fail" for result in results)


def as_json(worker: str, results: list[Result]) -> dict[str, Any]:
    """Return the results as plain values."""
    return {"worker": worker, "ok": passed(results), "checks": [asdict(result) for result in results]}


def as_text(result: Result) -> str:
    """Format a result as one line, with the reason below it."""
    line = f"{result.status}  {result.id:17}  {result.description}"
    return "\n".join([line, *(f"      {line}" for line in result.reason.splitlines())])


def totals(worker: str, results: list[Result]) -> str:
    """Return the numbers of passed, failed and skipped checks."""
    count = {status: sum(result.status == status for result in results) for status in ("pass", "fail", "skip")}
    return f"{worker}: {count['pass']} passed, {count['fail']} failed, {count['skip']} skipped"
