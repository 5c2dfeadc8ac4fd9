"""`mosaic series`: one of a run's curves, as a table, a picture or JSON."""

from __future__ import annotations

from typing import Annotated

import typer

from mosaic_bus.commands import Metrics, Runs, Series
from mosaic_services.cli.display.output import console, number, print_json, say, short, table
from mosaic_services.cli.display.plot import braille
from mosaic_services.cli.errors import InputError
from mosaic_services.cli.options import current

__all__ = ["command"]


def command(
    run: Annotated[str, typer.Argument(metavar="RUN", help="Any unique part of the run's id, or its name.")],
    metric: Annotated[
        str | None, typer.Argument(metavar="METRIC", help="episode_return, reward, a scalar…; without it: list them.")
    ] = None,
    points: Annotated[int, typer.Option("--points", min=2, max=100_000, help="At most so many points.")] = 200,
    values: Annotated[bool, typer.Option("--table", help="Print the numbers instead of a picture.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print one of a run's curves; without METRIC, say which it has."""
    with current.connect() as bus:
        (found,) = bus.request("scheduler", Runs(runs=[run])).runs
        metrics = bus.request("telemetry", Metrics(run=found.run)).metrics
        if metric is None:
            _print_names(metrics, as_json=as_json)
            return
        if metric not in metrics:
            hint = "it has: " + ", ".join(sorted(metrics)) if metrics else "it has none yet"
            raise InputError(f"run {short(found.run)} has no series {metric!r}", hint)
        series = bus.request("telemetry", Series(run=found.run, metric=metric, max_points=points))
    if as_json:
        print_json(series.model_dump(mode="json"))
        return
    known = [value for value in series.values if value is not None]
    if values or not known:
        rows = table("step", metric, "low", "high", right=("step", metric, "low", "high"))
        for step, *row in zip(series.steps, series.values, series.lows, series.highs, strict=True):
            rows.add_row(f"{step:,}", *(number(value) for value in row))
        console().print(rows)
        return
    width = min(100, max(20, console().width - 14))
    lines = braille(known, width, 10)
    for index, line in enumerate(lines):
        label = number(max(known)) if index == 0 else number(min(known)) if index == len(lines) - 1 else ""
        say((f"{label:>10} ", "bright_black"), (line, "cyan"))
    first, last = f"step {series.steps[0]:,}", f"{series.steps[-1]:,}"
    say((f"{'':>10} {first}{last:>{max(0, width - len(first))}}", "bright_black"))
    say(f"{metric} of {short(found.run)}: {series.points:,} points, last {number(known[-1])}")


def _print_names(metrics: dict[str, int], *, as_json: bool) -> None:
    if as_json:
        print_json({"metrics": metrics})
        return
    rows = table("metric", "points", right=("points",))
    for name, count in sorted(metrics.items()):
        rows.add_row(name, f"{count:,}")
    console().print(rows)
