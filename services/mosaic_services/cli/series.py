"""`mosaic series`: curves of runs, as a plot, a table or JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mosaic_bus.commands import Metrics, MetricsResult, Series
from mosaic_bus.wording import did_you_mean
from mosaic_services.cli.display.output import console, number, plain, print_json, say, short, table
from mosaic_services.cli.display.plot import COLOURS, draw_curves
from mosaic_services.cli.errors import InputError
from mosaic_services.cli.lookup import find_runs
from mosaic_services.cli.options import current

if TYPE_CHECKING:
    from mosaic_bus import Bus
    from mosaic_bus.commands import Curve
    from mosaic_bus.messages import RunState

__all__ = ["command"]


def command(
    words: Annotated[
        list[str],
        typer.Argument(metavar="RUN… METRIC", help="Runs by id or name, then episode_return, reward, a scalar…"),
    ],
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="NAME", help="Curve of one agent; the default is the team's.")
    ] = None,
    points: Annotated[int, typer.Option("--points", min=2, max=100_000, help="Maximum number of points.")] = 200,
    values: Annotated[bool, typer.Option("--table", help="Print the numbers instead of a plot.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Plot a curve of a run, or of several on common axes; with a RUN alone, list its metrics."""
    names, metric = (words, None) if len(words) == 1 else (words[:-1], words[-1])
    with current.reader() as bus:
        runs = find_runs(bus, names)
        if metric is None:
            _print_names(bus.request("telemetry", Metrics(run=runs[0].run)), as_json=as_json)
            return
        found = [(run, _series(bus, run, metric, agent, points)) for run in runs]
    if as_json:
        documents = [{"run": run.run, **series.model_dump(mode="json")} for run, series in found]
        print_json(documents[0] if len(documents) == 1 else documents)
    elif values or not any(value is not None for _, series in found for value in series.values):
        _print_table(found, metric)
    else:
        _plot(found, metric)


def _series(bus: Bus, run: RunState, metric: str, agent: str | None, points: int) -> Curve:
    names = bus.request("telemetry", Metrics(run=run.run))
    for what, given, known in (("metric", metric, list(names.metrics)), ("agent", agent, names.agents)):
        if given is not None and given not in known:
            listed = "it has: " + ", ".join(sorted(known)) if known else "it has none yet"
            raise InputError(f"run {short(run.run)} has no {what} {given!r}", did_you_mean(given, known) or listed)
    asked = Series(runs=[run.run], metrics=[metric], agent=agent, max_points=points)
    return bus.request("telemetry", asked).only


def _print_table(found: list[tuple[RunState, Curve]], metric: str) -> None:
    rows = table("run", "step", metric, "low", "high", right=("step", metric, "low", "high"))
    for run, series in found:
        for step, *row in zip(series.steps, series.values, series.lows, series.highs, strict=True):
            rows.add_row(short(run.run), f"{step:,}", *(number(value) for value in row))
    console().print(rows)


def _plot(found: list[tuple[RunState, Curve]], metric: str) -> None:
    curves: list[tuple[list[float], list[float]]] = []
    for _, series in found:
        pairs = [(step, value) for step, value in zip(series.steps, series.values, strict=True) if value is not None]
        curves.append(([float(step) for step, _ in pairs], [value for _, value in pairs]))
    draw_curves([curve for curve in curves if curve[0]], min(100, max(20, console().width - 14)), 10)
    drawn = 0
    for (run, series), (steps, known) in zip(found, curves, strict=True):
        mark = ("━━ ", COLOURS[drawn % len(COLOURS)]) if steps and len(found) > 1 else ""
        drawn += bool(steps)
        last = f", last {number(known[-1])}" if known else ""
        say(mark, f"{metric} of {run.name} ({short(run.run)}): {series.points:,} points{last}")


def _print_names(names: MetricsResult, *, as_json: bool) -> None:
    if as_json:
        print_json(names.model_dump(mode="json"))
        return
    rows = table("metric", "points", right=("points",))
    for name, count in sorted(names.metrics.items()):
        rows.add_row(name, f"{count:,}")
    console().print(rows)
    if names.agents:
        say("agents: " + ", ".join(plain(each) for each in names.agents))
