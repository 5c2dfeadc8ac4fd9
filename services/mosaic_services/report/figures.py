"""The figures of a report, drawn by matplotlib: SVG that follows the theme of the page, and PDF for a paper."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from mosaic_services.statistics.curves import mean_curve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy as np
    import numpy.typing as npt
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

    from mosaic_services.report.analysis import Analysis
    from mosaic_services.report.source import Training
    from mosaic_services.statistics.resampling import Interval

    Array = npt.NDArray[np.float64]

__all__ = ["COLOURS", "GRID", "INK", "Figure", "draw"]

# Colours that colour-blind readers can tell apart (Okabe and Ito, 2008). In SVG they become variables of the page.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b0568f", "#8a6d00", "#3a8fc4", "#6a4fb3", "#5c6670")
INK = "#1b1f24"
GRID = "#d5d9de"
_WIDTH = 5.2
_DASHES = ("-", "--", ":")
_LONGEST_NAME = 26


@dataclass(frozen=True)
class Figure:
    """A drawn figure with the sentence that says what it shows."""

    name: str
    title: str
    caption: str
    inline: str
    """SVG for the page: colours and fonts are the page's."""
    svg: str
    pdf: bytes


@dataclass(frozen=True)
class _Dot:
    """A row of a dot plot."""

    name: str
    value: float
    interval: Interval | None
    others: Sequence[float] = ()


@dataclass(frozen=True)
class _Line:
    """A curve with its band."""

    name: str
    at: Array
    middle: Array
    low: Array
    high: Array


def draw(found: Analysis, trainings: Sequence[Training] = ()) -> list[Figure]:
    """Draw every figure for which there is data."""
    import matplotlib as mpl  # noqa: PLC0415 - takes a moment to import

    settings: Any = {
        # Names come from users: a dollar sign in them starts no formula.
        "text.parse_math": False,
        "svg.fonttype": "none",
        "svg.hashsalt": "mosaic",
        "pdf.fonttype": 42,
        "font.size": 9,
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
        "text.color": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "grid.color": GRID,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
    }
    with mpl.rc_context(settings):
        return [*_scores(found), *_learning(trainings)]


def _scores(found: Analysis) -> Iterable[Figure]:
    rows = found.rows[::-1]
    if found.contest:
        rated = found.contest.ratings.ratings
        dots = [_Dot(row.label, *rated[row.name]) for row in rows]
        caption = "Bradley-Terry ratings with intervals over games."
        yield _dots("ratings", "Ratings", caption, dots, "rating (Elo points)")
        return
    if rows:
        dots = [_Dot(row.label, row.score.mean, row.score.mean_interval) for row in rows]
        caption = "Mean score of each checkpoint with its interval over episodes (Student's t)."
        yield _dots("means", "Mean", caption, dots, "mean return")
        dots = [_Dot(row.label, row.score.iqm, row.score.iqm_interval) for row in rows]
        caption = "Interquartile mean of each checkpoint with its interval over episodes (percentile bootstrap)."
        yield _dots("iqm", "Interquartile mean", caption, dots, "IQM of the return")
    yield from _profile(found)
    if found.pairs:
        dots = [
            _Dot(f"{pair.first} vs {pair.second}", pair.improvement.probability, pair.improvement.interval)
            for pair in found.pairs[::-1]
        ]
        caption = (
            "Probability that an episode of the first scores above one of the second. At one half nobody is better."
        )
        yield _dots("improvement", "Probability of improvement", caption, dots, "probability", line=0.5)
    several = [each for each in found.algorithms if each.score.seeds > 1]
    if several:
        means = {row.name: row.score.mean for row in found.rows}
        dots = [
            _Dot(each.name, each.score.mean, each.score.mean_nested, [means[name] for name in each.members])
            for each in several[::-1]
        ]
        caption = "Mean over training seeds with its interval (nested bootstrap); a small dot is one training seed."
        yield _dots("algorithms", "Algorithms", caption, dots, "mean return")


def _dots(name: str, title: str, caption: str, dots: Sequence[_Dot], label: str, line: float | None = None) -> Figure:
    def paint(axes: Axes) -> None:
        for place, dot in enumerate(dots):
            colour = COLOURS[(len(dots) - 1 - place) % len(COLOURS)] if line is None else COLOURS[0]
            if dot.interval:
                axes.plot(dot.interval, [place, place], color=colour, linewidth=2.2, solid_capstyle="butt")
            axes.plot(dot.others, [place - 0.22] * len(dot.others), "o", color=colour, markersize=3, alpha=0.7)
            axes.plot([dot.value], [place], "o", color=colour, markersize=5.5)
        if line is not None:
            axes.axvline(line, color=INK, linewidth=0.8, linestyle="--")
            axes.set_xlim(-0.03, 1.03)
        axes.set_yticks(range(len(dots)), [_short(dot.name) for dot in dots])
        axes.set_ylim(-0.6, len(dots) - 0.4)
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.set_xlabel(label)

    return _figure(name, title, caption, paint, 0.9 + 0.27 * len(dots))


def _profile(found: Analysis) -> Iterable[Figure]:
    if found.profile is None:
        return
    thresholds = found.profile.thresholds
    lines = [_Line(row.label, thresholds, *found.profile.shares[row.name]) for row in found.rows[: 2 * len(COLOURS)]]

    def paint(axes: Axes) -> None:
        _draw_lines(axes, lines)
        axes.set(xlabel="return", ylabel="share of episodes above", ylim=(-0.02, 1.02))

    caption = "Performance profile: the share of episodes that score above each return, with pointwise intervals."
    yield _figure("profile", "Performance profile", caption, paint, 3.3)


def _learning(trainings: Sequence[Training]) -> Iterable[Figure]:
    yield from _learning_over("steps", "environment steps", trainings, [each.steps for each in trainings])
    yield from _learning_over("seconds", "seconds of wall-clock time", trainings, [each.seconds for each in trainings])


def _learning_over(
    name: str, over: str, trainings: Sequence[Training], positions: Sequence[Sequence[float | None]]
) -> Iterable[Figure]:
    series: dict[str, list[tuple[Sequence[float | None], Sequence[float | None]]]] = {}
    for each, where in zip(trainings, positions, strict=True):
        series.setdefault(each.label, []).append((where, each.values))
    lines = []
    for label, found in series.items():
        if (curve := mean_curve(found)) is not None:
            named = f"{_short(label)} ({len(found)} {'seed' if len(found) == 1 else 'seeds'})"
            lines.append(_Line(named, curve.steps, curve.mean, curve.low, curve.high))
    if not lines:
        return

    def paint(axes: Axes) -> None:
        _draw_lines(axes, lines)
        axes.set(xlabel=over, ylabel="episode return in training")

    caption = "Mean of the training runs with a 95 % interval over training seeds (t); one run has none."
    yield _figure(f"learning-{name}", f"Learning curves over {name}", caption, paint, 3.3)


def _draw_lines(axes: Axes, lines: Sequence[_Line]) -> None:
    for place, line in enumerate(lines):
        colour, dash = COLOURS[place % len(COLOURS)], _DASHES[place // len(COLOURS) % len(_DASHES)]
        axes.plot(line.at, line.middle, label=_short(line.name), linewidth=1.6, color=colour, linestyle=dash)
        axes.fill_between(line.at, line.low, line.high, color=colour, alpha=0.16, linewidth=0)
    if len(lines) > 1:
        columns = 2 if len(lines) > 4 else 1  # noqa: PLR2004 - a longer list would be higher than the curves
        axes.legend(fontsize=8.5, ncols=columns, loc="upper center", bbox_to_anchor=(0.5, -0.18), borderaxespad=0.2)


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def _figure(name: str, title: str, caption: str, paint: Callable[[Axes], None], height: float) -> Figure:
    from matplotlib.figure import Figure as Drawn  # noqa: PLC0415 - takes a moment to import

    drawing: Drawing = Drawn(figsize=(_WIDTH, height), layout="constrained")
    axes = drawing.subplots()
    paint(axes)
    written, printed = io.StringIO(), io.BytesIO()
    drawing.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    drawing.savefig(printed, format="pdf", metadata={"CreationDate": None})
    svg = written.getvalue()
    return Figure(name, title, caption, _themed(svg, f"{title}. {caption}"), svg, printed.getvalue())


def _themed(svg: str, described: str) -> str:
    """Cut an SVG out of its document, with colours and fonts left to the page."""
    body = svg[svg.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    box = re.search(r'viewBox="[^"]*"', body)
    # What stood in a style sheet of the drawing's own is inherited from its root.
    opened = f'<svg {box[0] if box else ""} role="img" aria-label="{escape(described, quote=True)}" '
    opened += 'stroke-linejoin="round" stroke-linecap="butt" '
    opened += 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
    body = re.sub(r"<svg[^>]*>", lambda _: opened, body, count=1)
    body = re.sub(r"<style.*?</style>", "", body, flags=re.DOTALL)
    body = re.sub(r'style="([^"]*)"', lambda found: _attributes(found[1]), body)
    for place, colour in enumerate(COLOURS, 1):
        body = body.replace(colour, f"var(--c{place})")
    return body.replace(INK, "var(--ink)").replace(GRID, "var(--grid)")


def _attributes(style: str) -> str:
    """Turn a style into attributes of SVG: the page's content security policy allows its own style sheet alone."""
    pairs = []
    for each in style.split(";"):
        name, _, value = (part.strip() for part in each.partition(":"))
        if name == "font":  # a size and families; the family is the page's
            name, value = "font-size", next(part for part in value.split() if part.endswith("px"))
        if name:
            pairs.append(f'{name}="{value}"')
    return " ".join(pairs)
