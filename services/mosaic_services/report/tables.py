"""The tables of a report, from which HTML, Markdown, LaTeX and CSV are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mosaic_services.report.models import count_use
from mosaic_services.report.numbers import Decimals, percent, probability

if TYPE_CHECKING:
    from mosaic_services.report.analysis import Analysis, Contest
    from mosaic_services.statistics.resampling import Interval

__all__ = [
    "Cell",
    "Table",
    "algorithm_table",
    "decimals_of",
    "failure_table",
    "headline",
    "matrix",
    "mixes",
    "model_table",
    "pair_table",
]

_ELO = Decimals(0)


@dataclass(frozen=True)
class Cell:
    """Text, with the place that it leads to and a shade between 0 and 1 for a coloured table."""

    text: str
    link: tuple[str, int] | None = None
    """Lineup and episode."""
    shade: float | None = None


@dataclass(frozen=True)
class Table:
    """Rows of text; the first column names the row, the others are numbers unless they are in `left`."""

    name: str
    title: str
    columns: list[str]
    rows: list[list[Cell]]
    note: str = ""
    left: frozenset[str] = field(default_factory=frozenset)


def decimals_of(found: Analysis) -> Decimals:
    """The decimals of all scores of an experiment."""
    scores = [row.score for row in found.rows]
    return Decimals.of((each.mean_interval for each in scores), (each.mean for each in scores))


def headline(found: Analysis) -> Table:
    """One row for each lineup, or in games for each operator."""
    level = percent(found.confidence)
    show = decimals_of(found)
    if found.contest:
        return _standings(found, found.contest, level)
    columns = ["", "episodes", "mean", f"{level} interval", "IQM", f"{level} interval ", "median", "gap", "failures"]
    rows = []
    for row in found.rows:
        each = row.score
        texts = [
            f"{each.n:,}",
            show.text(each.mean),
            show.interval(each.mean_interval),
            show.text(each.iqm),
            show.interval(each.iqm_interval),
            show.text(each.median),
            show.text(each.gap),
            f"{row.failures:,}",
        ]
        rows.append([Cell(row.label, (row.lineup, int(row.episodes[0]))), *map(Cell, texts)])
    target = "" if found.target is None else f" Gap: optimality gap to {found.target:g}, {_origin(found)}."
    note = (
        "Score: return of an episode, summed over agents. Intervals over episodes: they say how well this checkpoint "
        f"plays. Mean: Student's t; IQM: percentile bootstrap.{target}"
    )
    return Table("scores", "Scores, with intervals over episodes", columns, rows, note)


def _origin(found: Analysis) -> str:
    given = found.experiment.get("target") is not None
    return "the target that the file sets" if given else "the best score in this experiment"


def _standings(found: Analysis, contest: Contest, level: str) -> Table:
    show = Decimals(3)
    columns = [
        "",
        "games",
        "points",
        f"{level} interval",
        "won",
        "drawn",
        "lost",
        "rating",
        f"{level} interval ",
        "failures",
    ]
    rows = []
    for row in found.rows:
        met = [meeting for (one, _), meeting in contest.meetings.items() if one == row.name]
        rating, interval = contest.ratings.ratings[row.name]
        texts = [
            f"{row.score.n:,}",
            show.text(row.score.mean),
            show.interval(row.score.mean_interval),
            *(f"{sum(getattr(each, kind) for each in met):,}" for kind in ("wins", "draws", "losses")),
            _ELO.text(rating),
            _ELO.interval(interval),
            f"{row.failures:,}",
        ]
        rows.append([Cell(row.label, (row.lineup, int(row.episodes[0]))), *map(Cell, texts)])
    moving = "Sides were not swapped, so the advantage of moving first is part of the ratings."
    if contest.ratings.first_mover:
        advantage, interval = contest.ratings.first_mover
        moving = f"Moving first is worth {_ELO.text(advantage)} points {_ELO.interval(interval)}."
    note = (
        "Points per game: 1 for a win, one half for a draw; Student's t over games. Rating: Bradley-Terry with draws "
        f"and first-mover advantage, in Elo points around 0; percentile bootstrap over games. {moving} Intervals "
        "say how well these checkpoints play, and nothing about algorithms."
    )
    return Table("scores", "Standings, with intervals over games", columns, rows, note)


def algorithm_table(found: Analysis) -> Table | None:
    """Algorithms over their training seeds."""
    if not found.algorithms:
        return None
    level = percent(found.confidence)
    show, places = decimals_of(found), _places(found)
    columns = [
        "",
        "training seeds",
        "episodes each",
        "mean",
        f"{level} interval, t",
        f"{level} interval, nested",
        "IQM",
        f"{level} interval, nested ",
    ]

    def interval(value: Interval | None) -> str:
        return "no claim" if value is None else show.interval(value)

    rows = []
    for each in found.algorithms:
        number = each.score
        texts = [
            str(number.seeds),
            f"{number.episodes:,}",
            show.text(number.mean),
            interval(number.mean_interval),
            interval(number.mean_nested),
            show.text(number.iqm),
            interval(number.iqm_nested),
        ]
        rows.append([Cell(each.name, places[each.members[0]]), *map(Cell, texts)])
    note = (
        "Intervals over training seeds: they say how well the algorithm does when it is trained again. t: Student's t "
        "on the mean of each seed. Nested: bootstrap of training seeds, then of their episodes. With one checkpoint "
        "there is no claim about the algorithm."
    )
    return Table("algorithms", "Algorithms, with intervals over training seeds", columns, rows, note)


def pair_table(found: Analysis) -> Table | None:
    """Rows compared two by two."""
    if not found.pairs:
        return None
    level = percent(found.confidence)
    show, places = decimals_of(found), _places(found)
    columns = [
        "",
        "against",
        "P(improvement)",
        f"{level} interval",
        "shared episodes",
        "mean difference",
        f"{level} interval ",
        "better",
        "equal",
    ]
    rows = []
    for pair in found.pairs:
        low, high = pair.improvement.interval
        texts = [probability(pair.improvement.probability), f"[{probability(low)}, {probability(high)}]"]
        if pair.difference is None:
            texts += ["0", "", "", "", ""]
        else:
            each = pair.difference
            texts += [f"{each.episodes:,}", show.text(each.mean), show.interval(each.interval)]
            texts += [f"{each.better:.0%}", f"{each.equal:.0%}"]
        names = [Cell(name, places[name]) for name in (pair.first, pair.second)]
        rows.append([*names, *map(Cell, texts)])
    note = (
        "P(improvement): probability that an episode of the first scores above an episode of the second, drawn "
        "independently; ties count half. Mean difference: over episodes with the same seed, paired, Student's t. "
        "Better, equal: share of these episodes."
    )
    return Table("comparisons", "Comparisons", columns, rows, note, frozenset({"against"}))


def _places(found: Analysis) -> dict[str, tuple[str, int]]:
    """The first episode of each row."""
    return {row.name: (row.lineup, int(row.episodes[0])) for row in found.rows}


def matrix(found: Analysis) -> Table | None:
    """Points of each operator against each other."""
    if not found.contest:
        return None
    ordered = [row.name for row in found.rows]
    places = _places(found)
    rows = []
    for one in ordered:
        cells = [Cell(one, places[one])]
        for other in ordered:
            each = found.contest.meetings.get((one, other))
            if each is None:
                cells.append(Cell(""))
                continue
            low, high = each.interval
            text = f"{each.points:.2f} [{low:.2f}, {high:.2f}]\n{each.wins}/{each.draws}/{each.losses}"
            cells.append(Cell(text, _meeting(found, one, other), each.points))
        rows.append(cells)
    note = "Points per game of the row against the column, Wilson's score interval, won/drawn/lost."
    return Table("matrix", "Head to head", ["", *ordered], rows, note)


def _meeting(found: Analysis, one: str, other: str) -> tuple[str, int] | None:
    """The first game of two operators, from the lineup in which the first moves first if there is one."""
    for operators in ([one, other], [other, one]):
        for name, play in found.plays.items():
            if play.lineup.operators == operators and play.records:
                return name, int(play.records[0]["episode"])
    return None


def mixes(found: Analysis) -> Table | None:
    """Maximal lottery and alpha-rank, if the results are cyclic."""
    if not found.contest or not found.contest.cycles:
        return None
    lottery, ranks = found.contest.lottery, found.contest.alpha_rank
    circles = "; ".join(", ".join(group) for group in found.contest.cycles)
    rows = [
        [Cell(name), Cell(f"{lottery[name]:.3f}"), Cell(f"{ranks[name]:.3f}")]
        for name in sorted(lottery, key=lambda each: -lottery[each])
    ]
    note = (
        f"The results are cyclic ({circles} beat each other in a circle), so no order of strength is right. The "
        "maximal lottery is the mix that no operator beats; alpha-rank is the share of time that evolution spends with "
        "each."
    )
    return Table("mixes", "No clear order", ["", "maximal lottery", "alpha-rank"], rows, note)


def failure_table(found: Analysis) -> Table | None:
    """Failures by kind."""
    if not found.failures:
        return None
    columns = ["", "kind", "then", "count", "first in episode", "message"]
    rows = [
        [
            Cell(f"{each.operator} in {each.lineup}" if each.operator != each.lineup else each.operator),
            Cell(each.kind),
            Cell(each.then),
            Cell(f"{each.count:,}"),
            Cell(f"{each.episode:,}", (each.lineup, each.episode)),
            Cell(each.message[:200]),
        ]
        for each in found.failures
    ]
    return Table("failures", "Failures", columns, rows, left=frozenset({"kind", "then", "message"}))


def model_table(found: Analysis) -> Table | None:
    """Language models: how often they answered with no legal action, and what they cost."""
    uses = count_use(found.plays)
    if not uses:
        return None
    columns = ["", "model", "episodes", "answers", "invalid", "refusals", "tokens in", "tokens out", "s per answer"]
    columns += ["USD per episode", "USD per point"]
    rows = []
    for each in uses:
        texts = [
            "+".join(sorted(filter(None, each.models))),
            f"{each.episodes:,}",
            f"{each.answers:,}",
            f"{each.invalid_rate:.1%}",
            f"{each.refusals:,}",
            f"{each.tokens_in:,}",
            f"{each.tokens_out:,}",
            f"{each.seconds / each.answers:.2f}" if each.answers else "",
            _usd(each.usd_per_episode),
            _usd(each.usd_per_point),
        ]
        name = each.operator if each.operator == each.lineup else f"{each.operator} in {each.lineup}"
        rows.append([Cell(name), *map(Cell, texts)])
    note = (
        "Invalid: share of answers that were no legal action. Point: of return, summed over the agents of the model. "
        "Without a price file there is no cost; replies from the cache count as they did when they were paid for."
    )
    return Table("models", "Language models", columns, rows, note, left=frozenset({"model"}))


def _usd(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"
