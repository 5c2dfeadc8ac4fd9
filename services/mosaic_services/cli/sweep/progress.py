"""Renders a group of runs: a line of progress, and a table of what varies, best first. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mosaic_bus.messages import FINAL_STATES, RunStateName
from mosaic_services.cli.display.output import STATE_STYLES, number, plain, short, state_text, styled, table, why
from mosaic_services.cli.display.plot import bar
from mosaic_services.sweeps.distributions import shown
from mosaic_services.sweeps.naming import labels
from mosaic_services.sweeps.trials import metric_value

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.table import Table
    from rich.text import Text

    from mosaic_bus.messages import RunState, RunSummary

__all__ = ["Row", "best_first", "progress", "run_table", "why_not"]

_BAR = 20
_REASONS_SHOWN = 10
_ON_THE_WAY = (RunStateName.PREPARING, RunStateName.STARTING, RunStateName.RUNNING, RunStateName.STOPPING)


def progress(counts: dict[str, int], total: int, width: int = _BAR, under_way: float = 0.0) -> Text:
    """Render `██████░░ 61 %  37 done · 4 running · 20 queued · 2 failed`.

    `under_way` is the work that running runs have done, in runs: two that are half done make 1.0.
    """
    ended = sum(counts.get(state, 0) for state in FINAL_STATES)
    done = (ended + under_way) / total if total else 0.0
    parts = [
        ("done", counts.get(RunStateName.SUCCEEDED, 0), "succeeded"),
        ("running", sum(counts.get(state, 0) for state in _ON_THE_WAY), "running"),
        ("queued", counts.get(RunStateName.QUEUED, 0), "queued"),
        *((state, counts.get(state, 0), state) for state in ("failed", "lost", "cancelled")),
    ]
    said = [(f"{count:,} {word}", STATE_STYLES[style]) for word, count, style in parts if count or word == "done"]
    joined = [piece for each in said for piece in ((" · ", ""), each)][1:]
    return styled((bar(done, width), "cyan"), f" {int(done * 100)} %  ", *joined)


@dataclass(frozen=True)
class Row:
    """One run of a group."""

    run: RunState
    summary: RunSummary | None
    values: dict[str, Any]


def best_first(
    runs: Iterable[RunState], summaries: dict[str, RunSummary], metric: str, *, lowest: bool
) -> list[RunState]:
    """Sort runs by a metric; runs without a value come last, in the order of submission."""

    def key(run: RunState) -> tuple[bool, float, str]:
        value = metric_value(summaries.get(run.run), metric)
        return (value is None, 0.0 if value is None else value if lowest else -value, run.run)

    return sorted(runs, key=key)


def why_not(rows: list[Row]) -> list[Text]:
    """A line for each run that did not succeed; the table has no room for reasons."""
    stopped = [row.run for row in rows if _stopped(row.run)]
    lines = [styled(short(run.run), "  ", state_text(run.state), f": {why(run)}") for run in stopped[:_REASONS_SHOWN]]
    if more := len(stopped) - len(lines):
        lines.append(styled((f"and {more} more that did not succeed: mosaic why RUN", "bright_black")))
    return lines


def run_table(rows: list[Row], metric: str) -> Table:
    """A table with a line per run: what varies, state and results."""
    paths = list({path: None for row in rows for path in row.values})
    named = labels(paths)
    title = "return" if metric == "episode_return" else metric
    columns = ["run", "name", *(named[path] for path in paths), "state", title, "episodes", "steps"]
    made = table(*columns, right=(title, "episodes", "steps"))
    for row in rows:
        summary = row.summary
        value = metric_value(summary, metric)
        spread = summary.return_std if summary and metric == "episode_return" and value is not None else None
        made.add_row(
            short(row.run.run),
            plain(row.run.name),
            *(_cell(row.values[path]) if path in row.values else "" for path in paths),
            state_text(row.run.state),
            number(value) + (f" ± {number(spread)}" if spread is not None else ""),
            f"{summary.episodes:,}" if summary else "",
            f"{summary.step:,}" if summary else "",
        )
    return made


def _stopped(run: RunState) -> bool:
    """Whether a run ended without success."""
    return run.state.final and run.state is not RunStateName.SUCCEEDED


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return plain(value) if isinstance(value, str) else shown(value)
