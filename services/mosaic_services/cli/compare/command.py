"""`mosaic compare`: one row per setting with its seeds folded, and the mean curves."""

from __future__ import annotations

import csv
from pathlib import Path  # noqa: TC003 - typer reads it
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mosaic_services.cli.display.output import console, number, print_json, say, short, styled, table
from mosaic_services.cli.display.plot import COLOURS, draw_curves
from mosaic_services.cli.errors import InputError
from mosaic_services.cli.options import current
from mosaic_services.comparison.collect import collect
from mosaic_services.statistics.curves import mean_curve
from mosaic_services.statistics.scores import FEW_SEEDS, score

if TYPE_CHECKING:
    from mosaic_services.comparison.collect import Collected
    from mosaic_services.comparison.folding import Setting
    from mosaic_services.statistics.curves import Curve
    from mosaic_services.statistics.scores import Score

__all__ = ["command"]

_METRIC = "episode_return"


def command(
    names: Annotated[list[str], typer.Argument(metavar="RUN|GROUP…", help="Runs by id or name, and groups.")],
    metric: Annotated[str, typer.Option("--metric", help="What to compare by.")] = _METRIC,
    by: Annotated[
        list[str] | None,
        typer.Option("--by", metavar="KEY", help="Fold runs by this key alone, such as algo (repeat for several)."),
    ] = None,
    lowest: Annotated[bool, typer.Option("--lowest", help="Lower is better.")] = False,
    png: Annotated[Path | None, typer.Option("--png", metavar="FILE", help="Draw the curves to this file.")] = None,
    to_csv: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Write the table to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare runs or groups: one row per setting, seeds folded, with 95 % intervals over training seeds.

    The score of a run is the mean of its last 100 episode returns, or of the last 100 points of another metric.

    mosaic compare ppo-sweep --by learning_rate --png curves.png
    """
    with current.reader() as bus:
        found = collect(bus, names, metric)
    if not found.scores:
        have = ", ".join(short(run) for run in found.states)
        raise InputError(f"none of the runs has a value of {metric!r} yet ({have})", "see: mosaic series RUN")
    try:
        settings = found.fold(by)
    except KeyError as error:
        raise InputError(f"no run has a setting {error.args[0]!r}", "see the config in: mosaic show RUN") from None
    scored = [(each, score([found.scores[run] for run in each.runs])) for each in settings]
    scored.sort(key=lambda pair: pair[1].mean, reverse=not lowest)
    curves = {
        each.label: mean_curve([(curve.steps, curve.values) for run in each.runs if (curve := found.curves.get(run))])
        for each, _ in scored
    }
    drawn = {label: curve for label, curve in curves.items() if curve is not None}
    if to_csv is not None:
        _write_csv(to_csv, scored)
    if png is not None:
        from mosaic_services.cli.compare.figure import save_figure  # noqa: PLC0415 - start-up time

        save_figure(png, drawn, metric)
    if as_json:
        print_json({"metric": metric, "settings": [_document(*pair, curves) for pair in scored]})
        return
    _print(scored, drawn, metric, found)
    for path in (png, to_csv):
        if path is not None:
            say("wrote ", (str(path), "bold"))


def _print(scored: list[tuple[Setting, Score]], curves: dict[str, Curve], metric: str, found: Collected) -> None:
    width = min(100, max(20, console().width - 14))
    if curves:
        draw_curves([(curve.steps.tolist(), curve.mean.tolist()) for curve in curves.values()], width, 12)
    rows = table(
        "", "setting", "seeds", "mean", "95 % interval", "IQM", "median", right=("seeds", "mean", "IQM", "median")
    )
    colours = {label: COLOURS[place % len(COLOURS)] for place, label in enumerate(curves)}
    for setting, each in scored:
        colour = colours.get(setting.label, "")
        rows.add_row(
            styled(("━━" if colour else "", colour)),
            setting.label,
            str(each.n),
            number(each.mean),
            _interval(each.mean_interval),
            number(each.iqm),
            number(each.median),
        )
    console().print(rows)
    say((f"{metric}: mean of the last 100 of each run; intervals over training seeds (t)", "bright_black"))
    few = [setting.label for setting, each in scored if each.n < FEW_SEEDS]
    if few:
        say((f"warning: fewer than {FEW_SEEDS} seeds in {len(few)} of {len(scored)} settings", "yellow"))
    if without := [run for run in found.states if run not in found.scores]:
        say((f"left out, without a value: {', '.join(short(run) for run in without)}", "yellow"))


def _interval(interval: tuple[float, float] | None) -> str:
    return f"[{number(interval[0])}, {number(interval[1])}]" if interval else "one seed"


def _document(setting: Setting, each: Score, curves: dict[str, Curve | None]) -> dict[str, Any]:
    curve = curves[setting.label]
    return {
        "setting": setting.label,
        "values": setting.values,
        "runs": setting.runs,
        **{key: getattr(each, key) for key in each.__dataclass_fields__},
        "curve": {key: getattr(curve, key).tolist() for key in ("steps", "mean", "low", "high")} if curve else None,
    }


def _write_csv(path: Path, scored: list[tuple[Setting, Score]]) -> None:
    paths = list(scored[0][0].values)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(
            [*paths, "seeds", "mean", "mean_low", "mean_high", "iqm", "iqm_low", "iqm_high", "median", "runs"]
        )
        for setting, each in scored:
            writer.writerow(
                [
                    *setting.values.values(),
                    each.n,
                    each.mean,
                    *(each.mean_interval or ("", "")),
                    each.iqm,
                    *(each.iqm_interval or ("", "")),
                    each.median,
                    " ".join(setting.runs),
                ]
            )
