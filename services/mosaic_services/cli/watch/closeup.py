"""Renders one run for `mosaic watch RUN`: curve, figures, resources, end of the log. Pure, like `panel`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from mosaic_bus.messages import RunStateName
from mosaic_services.cli.display.figures import eta_s
from mosaic_services.cli.display.output import STATE_STYLES, ago, duration, number, plain, short, size
from mosaic_services.cli.display.plot import bar, braille
from mosaic_services.cli.watch.panel import header
from mosaic_services.progress import fraction

if TYPE_CHECKING:
    from rich.console import RenderableType

    from mosaic_bus.messages import RunState, RunSummary
    from mosaic_services.cli.watch.feed import View

__all__ = ["closeup"]

_DIM = "bright_black"
_LABEL = 12
_SCALARS_SHOWN = 10


def closeup(view: View, run_id: str, width: int, height: int, now: float) -> Group:
    """Render everything about one run that fits the terminal."""
    parts: list[RenderableType] = [header(view, width), Text()]
    run = view.run(run_id)
    if run is None:
        return Group(*parts, Text("asking…", style=_DIM))
    summary = view.summaries.get(run.run)
    parts.append(_title(run, summary, now))
    if summary is None or run.state in {RunStateName.QUEUED, RunStateName.PREPARING}:
        parts.append(Text(plain(run.detail or run.reason)))
    elif run.state.final and run.state is not RunStateName.SUCCEEDED:
        parts.append(Text(plain(run.reason), style="red" if run.state is RunStateName.FAILED else "default"))
    if summary is not None:
        facts = [*_facts(run, summary, view, now), *_scalars(summary, width)]
        log = _log(view.log, width, max(3, min(8, height - 16 - len(facts))))
        room = height - len(facts) - len(log) - 9
        parts += [Text(), *_curve(view, width, max(4, min(14, room))), Text(), *facts, *log]
    return Group(*parts)


def _title(run: RunState, summary: RunSummary | None, now: float) -> Text:
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(plain(run.name), style="bold")
    text.append(f"  {short(run.run)}  ", style=_DIM)
    text.append(f"● {run.state}", style=STATE_STYLES.get(run.state, ""))
    if summary is None:
        return text
    if run.state is RunStateName.RUNNING:
        done = fraction(summary)
        if done is not None:
            text.append(f"  {bar(done, 20)} {done * 100:.0f} %", style="cyan")
        text.append(f"  {summary.steps_per_s:,.0f} steps/s")
        if (eta := eta_s(run, summary, now)) is not None:
            text.append(f"  ETA {duration(eta)}")
    elif run.ended_at and run.started_at:
        text.append(f"  {ago(run.ended_at, now)}, after {duration(run.ended_at - run.started_at)}")
    return text


def _curve(view: View, width: int, height: int) -> list[Text]:
    values = [value for value in view.series.values if value is not None] if view.series else []
    if not values or view.series is None:
        return [Text("no episode has ended yet", style=_DIM)]
    span = min(width - _LABEL - 1, 140)
    lines = []
    for index, dots in enumerate(braille(values, span, height)):
        label = number(max(values)) if index == 0 else number(min(values)) if index == height - 1 else ""
        line = Text(f"{label:>{_LABEL - 1}} ", style=_DIM)
        line.append(dots, style="green")
        lines.append(line)
    left, right = f"episode return, step {view.series.steps[0]:,}", f"{view.series.steps[-1]:,}"
    lines.append(Text(f"{'':{_LABEL}}{left}{right:>{max(1, span - len(left))}}", style=_DIM))
    return lines


def _facts(run: RunState, summary: RunSummary, view: View, now: float) -> list[Text]:
    of_steps = f" of {summary.total_steps:,}" if summary.total_steps else ""
    of_episodes = f" of {summary.total_episodes:,}" if summary.total_episodes else ""
    rows = [
        ("task", f"{summary.task or run.name}   worker {run.worker}   host {run.host or 'none'}, attempt {run.attempt}")
    ]
    rows.append(("progress", f"step {summary.step:,}{of_steps}   episode {summary.episodes:,}{of_episodes}"))
    if summary.return_mean is not None:
        mean = f"{number(summary.return_mean)} ± {number(summary.return_std)} over the last 100 episodes"
        rows.append(("return", f"{mean}   last {number(summary.return_last)}"))
    usage = view.usage(run.run)
    if usage is not None and not run.state.final:
        count = "1 process" if usage.processes == 1 else f"{usage.processes} processes"
        rows.append(("uses", f"{usage.cpu_percent:.0f} % CPU   {size(usage.rss_mb)}   {count}"))
    if summary.checkpoint:
        rows.append(("checkpoint", summary.checkpoint))
    stored = "all stored" if summary.complete else f"{summary.missing:,} missing"
    heard = f"   last {ago(summary.last_event_at, now)}" if summary.last_event_at and not run.state.final else ""
    malformed = f"   {summary.malformed:,} malformed" if summary.malformed else ""
    rows.append(("events", f"{summary.events:,}   {stored}   {summary.repaired:,} repaired{malformed}{heard}"))
    return [_row(label, text) for label, text in rows]


def _row(label: str, text: str) -> Text:
    line = Text(f"{label:<{_LABEL}}", style=_DIM, no_wrap=True, overflow="ellipsis")
    line.append(plain(text), style="default")
    return line


def _scalars(summary: RunSummary, width: int) -> list[Text]:
    named = [f"{name} {number(value)}" for name, value in sorted(summary.scalars.items())][:_SCALARS_SHOWN]
    lines: list[str] = []
    for each in named:
        if lines and len(lines[-1]) + len(each) + 3 <= width - _LABEL:
            lines[-1] += f"   {each}"
        else:
            lines.append(each)
    return [_row("scalars" if index == 0 else "", text) for index, text in enumerate(lines)]


def _log(lines: list[str], width: int, count: int) -> list[Text]:
    if not lines:
        return []
    shown = [Text(f"  {plain(line)}"[:width], no_wrap=True, overflow="ellipsis") for line in lines[-count:]]
    return [Text(), Text("log", style=_DIM), *shown]
