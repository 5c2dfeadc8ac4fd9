"""`mosaic report`: one folder of pages, tables and figures from the records of an experiment."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads it
from typing import Annotated

import typer

from mosaic_services.cli.display.output import print_json, say
from mosaic_services.cli.errors import CliError
from mosaic_services.cli.experiments import find
from mosaic_services.cli.options import current

__all__ = ["command"]


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
    from mosaic_services.report.trainings import read_trainings  # noqa: PLC0415 - start-up time

    folder = current.home.experiments / find(experiment).experiment
    try:
        with current.reader() as bus:
            trainings = read_trainings(bus, folder)
        written = write_report(folder, out, trainings)
    except ReportError as error:
        raise CliError(str(error)) from error
    if as_json:
        print_json({"report": str(written.index), "lines": written.lines})
        return
    for line in written.lines:
        say(line)
