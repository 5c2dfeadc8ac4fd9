"""Renders `mosaic watch`: a header and a line per run. Pure: takes a view, returns text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from mosaic_bus.messages import AttemptPhase, RunStateName
from mosaic_services.cli.display.figures import eta_s, loss
from mosaic_services.cli.display.output import STATE_STYLES, duration, fit_name, number, plain, short, size, why
from mosaic_services.cli.display.plot import bar, sparkline
from mosaic_services.cli.sweep.progress import progress
from mosaic_services.progress import fraction

if TYPE_CHECKING:
    from mosaic_bus.messages import RunState, RunSummary
    from mosaic_services.cli.watch.feed import View

__all__ = ["header", "run_line", "table"]

_DIM = "bright_black"
_USAGE_WIDTH = 14
_LEAST_TASK = 10
# Columns of a mean and its spread; without room for both there is the mean alone.
_RETURN = 12
_INDENT = "      "
_WAITING = frozenset({RunStateName.QUEUED, RunStateName.PREPARING, RunStateName.STARTING})


def header(view: View, width: int) -> Text:
    """Render the counts, and what is wrong if something is."""
    running = sum(run.state is RunStateName.RUNNING for run in view.runs)
    queued = sum(run.state is RunStateName.QUEUED for run in view.runs)
    other = len(view.active) - running - queued
    counts = [f"{running} running", *([f"{other} preparing or stopping"] if other else []), f"{queued} queued"]
    hosts = ", ".join(host.host for host in view.hosts) or "no host"
    parts = [Text.assemble(("MOSAIC", "bold"), (f"  {hosts}", _DIM))]
    if view.group is None:  # a group has a line of its own, and may have more runs than are shown
        parts.append(Text(" · ".join([*counts, f"{view.done} done"]), style="default"))
    if view.hosts:
        given = sum(
            each.resources.cpus for host in view.hosts for each in host.attempts if each.phase is not AttemptPhase.ENDED
        )
        cpus = sum(host.total.cpus for host in view.hosts)
        used = sum(host.memory_used_mb for host in view.hosts) / 1024
        memory = sum(host.total.memory_mb for host in view.hosts) / 1024
        parts.append(Text(f"{given:g}/{cpus:g} CPU  {used:.1f}/{memory:.0f} GB", style="default"))
    missing = sum(each.missing for each in view.summaries.values())
    repaired = sum(each.repaired for each in view.summaries.values())
    tail = Text("" if view.events_per_s is None else f"events {view.events_per_s:,.0f}/s  ")
    # Not lost: their journals still hold them.
    tail.append(f"missing {missing:,}", style="bold yellow" if missing else "default")
    tail.append(f"  repaired {repaired:,}")
    text = _joined([*parts, tail], width)
    if view.trouble:
        text.append(f"\n{view.trouble}; showing the last known state", style="bold yellow")
    return text


def _joined(parts: list[Text], width: int) -> Text:
    """Join parts, with line breaks where they do not fit."""
    text, used = Text(), 0
    for part in parts:
        gap = "   "
        if used and used + len(gap) + part.cell_len > width:
            gap, used = f"\n{_INDENT}", len(_INDENT)
        elif not used:
            gap = ""
        else:
            used += len(gap)
        text.append(gap).append_text(part)
        used += part.cell_len
    return text


class Columns:
    """Which columns fit the terminal, and their widths."""

    def __init__(self, width: int, *, with_loss: bool) -> None:
        self.width = width
        self.time = "ETA"
        wide, narrow, tiny = width >= 130, width < 118, width < 92  # noqa: PLR2004 - plain in its place
        self.loss = 10 if with_loss and not tiny else 0  # "-1.2e-05" and two blanks
        self.worker = 10 if wide else 8
        self.bar = 14 if wide else 5 if tiny else 7 if narrow else 8
        self.spark = 12 if wide else 4 if tiny else 6 if narrow else 8
        fixed = 8 + self.worker + 2 + self.bar + 7 + 9 + self.spark + 14 + self.loss + 8
        self.usage = width >= fixed + _USAGE_WIDTH + _LEAST_TASK + 3
        fixed += _USAGE_WIDTH if self.usage else 0
        self.task = max(_LEAST_TASK, min(30, width - fixed - 3))
        left = width - fixed - self.task - 5
        self.name = min(26, left) if left >= 10 else 0  # noqa: PLR2004 - less is of no use

    def titles(self) -> Text:
        """Render the column titles."""
        parts = [
            f"{'RUN':<8}",
            f"{'NAME':<{self.name + 2}}" if self.name else "",
            f"{'WORKER':<{self.worker + 2}}{'TASK' if self.name else 'NAME':<{self.task + 2}}",
            f"{'PROGRESS':<{self.bar + 7}}",
            f"{'STEPS/S':>7}  {'RETURN (last 100)':<{self.spark + 14}}",
            f"{'LOSS':>{self.loss - 2}}  " if self.loss else "",
            f"{'CPU':>5} {'RAM':>7} " if self.usage else "",
            f"{self.time:>8}",
        ]
        return Text("".join(parts), style=_DIM, no_wrap=True, overflow="crop")


def table(view: View, width: int, height: int, now: float, selected: str | None = None) -> Group:
    """Render header, titles and as many runs as fit: active ones first, always including the selected one."""
    top = header(view, width)
    if not view.loaded:
        return Group(top, Text("asking…", style=_DIM))
    if view.group is not None:
        top.append(f"\n{view.group.group}  ", style="bold")
        under_way = sum(fraction(view.summaries[run.run]) or 0.0 for run in view.active if run.run in view.summaries)
        top.append_text(progress(view.group.counts, view.group.total, under_way=under_way))
    if not view.runs:
        return Group(top, Text("\nNo runs yet. Start one:  mosaic submit --worker baseline", style="default"))
    runs = [*view.active, *view.final]
    room = max(1, height - 5 - top.plain.count("\n"))
    chosen = next((index for index, run in enumerate(runs) if run.run == selected), 0)
    first = max(0, chosen - room + 1)
    shown = runs[first : first + room]
    losses = {found[0]: None for run in shown if (it := view.summaries.get(run.run)) and (found := loss(it))}
    columns = Columns(width, with_loss=bool(losses))
    columns.time = "ETA" if not shown[-1].state.final else "TOOK" if shown[0].state.final else "ETA/TOOK"
    lines = [run_line(run, view, columns, now, selected=run.run == selected) for run in shown]
    rest = []
    if len(shown) < len(runs):
        left = len(runs) - len(shown)
        rest.append(Text(f"… and {left} more  (mosaic runs)", style=_DIM))
    if columns.loss:
        rest.append(Text(f"LOSS: {', '.join(losses)}", style=_DIM, no_wrap=True, overflow="ellipsis"))
    return Group(top, Text(), columns.titles(), *lines, *rest)


def run_line(run: RunState, view: View, columns: Columns, now: float, *, selected: bool = False) -> Text:
    """Render one run."""
    summary = view.summaries.get(run.run)
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(f"{short(run.run)}  ", style="bold")
    if columns.name:
        line.append(_fit(fit_name(run.name, columns.name), columns.name) + "  ")
    line.append(_fit(run.worker, columns.worker) + "  ")
    # Without room for both, the name: all runs of a sweep have the same task.
    task = fit_name(run.name, columns.task) if not columns.name else summary.task if summary else ""
    line.append(_fit(task or "", columns.task) + "  ")
    if run.state in _WAITING or summary is None:
        line.append(f"{run.state}: ", style=STATE_STYLES.get(run.state, ""))
        line.append(why(run))
    else:
        _append_figures(line, run, summary, view, columns, now)
    line.truncate(columns.width, overflow="ellipsis")
    if selected:
        line.stylize("reverse")
    return line


def _append_figures(line: Text, run: RunState, summary: RunSummary, view: View, columns: Columns, now: float) -> None:
    style = STATE_STYLES.get(run.state, "")
    if run.state is RunStateName.RUNNING:
        line.append(_progress(summary, columns.bar), style="cyan")
    else:
        line.append(_fit(str(run.state), columns.bar + 7), style=style)
    line.append(f"{_rate(summary.steps_per_s):>7}  " if run.state is RunStateName.RUNNING else " " * 9)
    line.append(_fit(sparkline(summary.returns, columns.spark), columns.spark) + " ", style="green")
    mean = "" if summary.return_mean is None else number(summary.return_mean)
    spread = "" if summary.return_std is None else f" ±{_brief(summary.return_std)}"
    both = mean + spread
    line.append(_fit(both if len(both) <= _RETURN else mean, _RETURN) + " ")
    if columns.loss:
        found = loss(summary)
        line.append(f"{number(found[1]) if found else '':>{columns.loss - 2}}  ")
    if columns.usage:
        usage = view.usage(run.run) if not run.state.final else None
        line.append(f"{usage.cpu_percent:>4.0f}% {size(usage.rss_mb):>7} " if usage else " " * 14)
    if run.state.final:
        took = run.ended_at - run.started_at if run.ended_at and run.started_at else None
        line.append(f"{_span(took) if took is not None else '':>8}", style=_DIM)
    elif (eta := eta_s(run, summary, now)) is not None:
        line.append(f"{_span(eta):>8}")


def _span(seconds: float) -> str:
    """Format a duration in eight characters, or nine from ten days on."""
    days, rest = divmod(int(max(0, seconds)), 86_400)
    return f"{days} d {rest // 3600:02} h" if days else duration(seconds)


def _progress(summary: RunSummary, width: int) -> str:
    done = fraction(summary)
    if done is None:
        return _fit(f"step {summary.step:,}", width + 7)
    return f"{bar(done, width)} {done * 100:>3.0f} % "


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value < 999_999.5 else f"{value / 1e6:.1f} M"  # noqa: PLR2004 - seven columns


def _brief(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 10 else f"{value:.2g}"  # noqa: PLR2004 - plain in its place


def _fit(text: str, width: int) -> str:
    """Pad or cut text to exactly `width` columns."""
    cut = Text(plain(text).replace("\n", " "))
    cut.truncate(width, overflow="ellipsis", pad=True)
    return cut.plain
