"""The result of an experiment that is over: its table, and what went wrong."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic_bus.messages import ExperimentStateName
from mosaic_services.cli.display.output import say

if TYPE_CHECKING:
    from mosaic_bus import Bus
    from mosaic_bus.messages import ExperimentState
    from mosaic_services.report import Report

__all__ = ["print_result", "result_document"]


def print_result(bus: Bus, state: ExperimentState, again: str) -> None:
    """Write the report, print its table, what went wrong, and how to run it again."""
    from mosaic_services.report import ReportError  # noqa: PLC0415 - start-up time

    if state.done:
        try:
            for line in _write(bus, state).lines:
                say(line)
        except ReportError as error:
            say(("no report: ", "yellow"), str(error))
    for left in state.lineups:
        if left.given_up:
            count = f"{left.wanted - left.done:,} episodes not played: "
            say((f"{left.lineup}: ", "bold"), (count, "red"), left.given_up)
    if state.lost:
        say((f"{state.lost} shards were lost; their episodes were played again", "yellow"))
    if state.conflicts:
        say((f"{state.conflicts} episodes gave another result when they were played again", "red"))
    if state.state is not ExperimentStateName.FINISHED:
        say((f"{state.state.value}: ", "red"), state.reason, (f"   again: {again}", "bright_black"))


def result_document(bus: Bus, state: ExperimentState) -> dict[str, Any]:
    """The result for programs; `scores` is what the report's summary.json has."""
    import orjson  # noqa: PLC0415 - start-up time

    from mosaic_services.report import ReportError  # noqa: PLC0415 - start-up time

    document = state.model_dump(mode="json")
    if state.done:
        try:
            report = _write(bus, state).index
        except ReportError as error:
            return {**document, "report": None, "problem": str(error)}
        document |= {"report": str(report), "scores": orjson.loads((report.parent / "summary.json").read_bytes())}
    return document


def _write(bus: Bus, state: ExperimentState) -> Report:
    from mosaic_services.report import write_report  # noqa: PLC0415 - start-up time
    from mosaic_services.report.trainings import read_trainings  # noqa: PLC0415 - start-up time

    folder = Path(state.folder)
    return write_report(folder, trainings=read_trainings(bus, folder))
