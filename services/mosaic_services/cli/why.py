"""`mosaic why`: explains why a run waits, runs where it does, stopped, was retried or failed."""

from __future__ import annotations

from typing import Annotated

import typer

from mosaic_bus.commands import Why, WhyResult
from mosaic_services.cli.display.output import STATE_STYLES, clock, console, print_json, say, short, table
from mosaic_services.cli.lookup import find_run
from mosaic_services.cli.options import current

__all__ = ["command"]

_DIM = "bright_black"


def command(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Any unique part of the run's id, or its name.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Explain the state of a run: what it waits for and which runs hold it, why it runs there, why it ended."""
    with current.reader() as bus:
        answer = bus.request("scheduler", Why(run=find_run(bus, run).run))
    if as_json:
        print_json(answer.model_dump(mode="json"))
    else:
        _print(answer)


def _print(answer: WhyResult) -> None:
    say((answer.answer, STATE_STYLES.get(answer.run.state, "bold")))
    for fact in answer.facts:
        say("  · ", fact)
    if answer.log:
        say(("\nLAST LINES OF ITS LOG", _DIM), (f"  (all of it: mosaic logs {short(answer.run.run)})", _DIM))
        for line in answer.log:
            say("  | ", line)
    if answer.decisions:
        say(("\nWHAT WAS DECIDED", _DIM))
        rows = table("at", "what", "why")
        rows.show_header = False
        rows.columns[2].no_wrap = False
        for each in answer.decisions:
            rows.add_row(clock(each.at), each.event, each.reason)
        console().print(rows)
