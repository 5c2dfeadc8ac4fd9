"""`mosaic report`: one folder of pages, tables and figures from the records of an experiment."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads it
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mosaic_bus.commands import Series
from mosaic_bus.errors import CommandRefusedError
from mosaic_services.cli.display.output import print_json, say
from mosaic_services.cli.errors import CliError
from mosaic_services.cli.experiments import find
from mosaic_services.cli.options import current
from mosaic_services.experiments.folder import ExperimentFolder

if TYPE_CHECKING:
    from mosaic_bus import Bus
    from mosaic_services.report import Training

__all__ = ["command"]

_POINTS = 1000


def command(
    experiment: Annotated[str, typer.Argument(metavar="EXPERIMENT", help="Name of an experiment.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Where to write it (default: report/ of the experiment)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Write the report of an experiment: HTML, Markdown, CSV and LaTeX, with figures and where it comes from.

    mosaic report cartpole --out report
    """
    from mosaic_services.report import ReportError, write_report  # noqa: PLC0415 - start-up time

    folder = current.home.experiments / find(experiment).experiment
    plan = ExperimentFolder(folder).read_plan() or {}
    with current.reader() as bus:
        trainings = _trainings(bus, plan.get("operators", {}))
    try:
        written = write_report(folder, out, trainings)
    except ReportError as error:
        raise CliError(str(error)) from error
    if as_json:
        print_json({"report": str(written.index), "lines": written.lines})
        return
    for line in written.lines:
        say(line)


def _trainings(bus: Bus, operators: dict[str, dict[str, Any]]) -> list[Training]:
    """The learning curves of the runs that operators come from; a run that was deleted has none."""
    from mosaic_services.report import Training  # noqa: PLC0415 - start-up time

    found = []
    for name, operator in operators.items():
        run = operator.get("training_run")
        if not run:
            continue
        try:
            command = Series(runs=[run], metrics=["episode_return"], max_points=_POINTS)
            curve = bus.request("telemetry", command).only
        except (CommandRefusedError, ValueError):  # deleted, or it has none
            continue
        times = [moment for moment in curve.times if moment is not None]
        began = min(times, default=0.0)
        seconds = [None if moment is None else moment - began for moment in curve.times]
        label = operator.get("algorithm") or name
        found.append(Training(str(label), str(run), curve.steps, curve.values, seconds))
    return found
