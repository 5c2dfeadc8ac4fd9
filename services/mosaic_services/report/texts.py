"""A report as Markdown, LaTeX, CSV and JSON."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import orjson

from mosaic_services.report.tables import (
    algorithm_table,
    failure_table,
    headline,
    matrix,
    mixes,
    model_table,
    pair_table,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from mosaic_services.report.analysis import Analysis
    from mosaic_services.report.tables import Table

__all__ = ["all_tables", "episodes_csv", "latex", "markdown", "pairs_csv", "scores_csv", "summary"]

_LATEX = {"&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}"}
_LATEX |= {"^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "\u2212": "$-$", "<": "$<$", ">": "$>$"}


def all_tables(found: Analysis) -> list[Table]:
    """The tables that an experiment has, in the order of the report."""
    tables = (headline, algorithm_table, pair_table, matrix, mixes, model_table, failure_table)
    return [table for make in tables if (table := make(found)) is not None]


def markdown(found: Analysis, rerun: str) -> str:
    """The report as Markdown."""
    parts = [f"# {_flat(found.name)}", _said(found)]
    if found.warnings:
        parts.append("\n".join(f"- **Warning.** {_flat(warning)}" for warning in found.warnings))
    for table in all_tables(found):
        head = [f"| {' | '.join(_flat(name.strip()) for name in table.columns)} |"]
        head.append(f"|{'|'.join('---' if not place else '---:' for place in range(len(table.columns)))}|")
        body = [f"| {' | '.join(_flat(cell.text) for cell in row)} |" for row in table.rows]
        parts += [f"## {table.title}", "\n".join([*head, *body]), table.note]
    if found.decision:
        parts += ["## Stopping rule", found.decision.words]
    if rerun:
        parts += ["## Run it again", f"```\n{rerun}\n```"]
    return "\n\n".join(part for part in parts if part) + "\n"


def _said(found: Analysis) -> str:
    environment = found.experiment.get("environment") or {}
    counts = [len(play.records) for play in found.plays.values()]
    return f"{_flat(str(environment.get('id', '')))}, {sum(counts):,} episodes of {len(counts)} lineups."


def _flat(text: str) -> str:
    """Text that does not break a row of a table."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


def latex(found: Analysis) -> str:
    """The table of scores for a paper; it needs the package booktabs."""
    table = headline(found)
    shown = [place for place, name in enumerate(table.columns) if name not in {"failures", "games"}]
    lines = [
        f"% {_flat(found.name)}: made by mosaic report. Needs \\usepackage{{booktabs}}.",
        f"% {table.note}",
        f"\\begin{{tabular}}{{l{'r' * (len(shown) - 1)}}}",
        "\\toprule",
        " & ".join(_tex(table.columns[place].strip()) for place in shown) + r" \\",
        "\\midrule",
        *(" & ".join(_tex(row[place].text) for place in shown) + r" \\" for row in table.rows),
        "\\bottomrule",
        "\\end{tabular}",
    ]
    return "\n".join(lines) + "\n"


def _tex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def scores_csv(found: Analysis) -> str:
    """All statistics of each row, unrounded."""
    names = ("mean", "iqm", "median", "gap")
    header = ["name", "lineup", "operator", "episodes"]
    header += [f"{name}{end}" for name in names for end in ("", "_low", "_high")]
    header += ["low", "high", "confidence", "failures"]
    rows = []
    for row in found.rows:
        each = row.score
        values: list[Any] = [row.name, row.lineup, row.operator or "", each.n]
        for name in names:
            values += [getattr(each, name), *(getattr(each, f"{name}_interval") or ("", ""))]
        rows.append([*values, each.low, each.high, found.confidence, row.failures])
    return _csv(header, rows)


def pairs_csv(found: Analysis) -> str:
    """All comparisons, unrounded."""
    header = ["first", "second", "improvement", "improvement_low", "improvement_high", "shared_episodes"]
    header += ["difference", "difference_low", "difference_high", "better", "equal", "confidence"]
    rows = []
    for pair in found.pairs:
        each = pair.difference
        paired: list[Any] = [0, "", "", "", "", ""]
        if each is not None:
            paired = [each.episodes, each.mean, *(each.interval or ("", "")), each.better, each.equal]
        rows.append([pair.first, pair.second, pair.improvement.probability, *pair.improvement.interval, *paired])
        rows[-1].append(found.confidence)
    return _csv(header, rows)


def episodes_csv(found: Analysis) -> str:
    """Every episode: its seed, score, returns, end and failures."""
    agents = list(dict.fromkeys(agent for play in found.plays.values() for r in play.scored for agent in r["returns"]))
    header = ["lineup", "episode", "env_seed", "score", *(f"return_{agent}" for agent in agents)]
    header += ["length", "ended", "winners", "failures", "action_hash"]
    rows = []
    for name, play in found.plays.items():
        for record in play.records:
            returns = record["returns"]
            total = sum(returns.values()) if returns and None not in returns.values() else ""
            failures = len(record.get("failures") or ())
            winners = record.get("winners")
            rows.append(
                [
                    name,
                    record["episode"],
                    record.get("env_seed", ""),
                    total,
                    *(returns.get(agent, "") for agent in agents),
                    record.get("length", ""),
                    record.get("ended", ""),
                    "" if winners is None else " ".join(winners) or "draw",
                    failures,
                    record.get("action_hash", ""),
                ]
            )
    return _csv(header, rows)


def _csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    file = io.StringIO(newline="")
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(["" if value is None else value for value in row] for row in rows)
    return file.getvalue()


def summary(found: Analysis) -> bytes:
    """All numbers of the report as JSON."""
    contest = found.contest
    document = {
        "experiment": found.name,
        "confidence": found.confidence,
        "target": found.target,
        "scores": [
            {"name": row.name, "lineup": row.lineup, "operator": row.operator, "failures": row.failures}
            | asdict(row.score)
            for row in found.rows
        ],
        "algorithms": [asdict(each) for each in found.algorithms],
        "comparisons": [asdict(each) for each in found.pairs],
        "games": contest
        and {
            "meetings": [{"first": a, "second": b, **asdict(each)} for (a, b), each in contest.meetings.items()],
            "ratings": asdict(contest.ratings),
            "cycles": contest.cycles,
            "maximal_lottery": contest.lottery,
            "alpha_rank": contest.alpha_rank,
        },
        "failures": [asdict(each) for each in found.failures],
        "stopping": found.decision and asdict(found.decision),
        "warnings": found.warnings,
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY) + b"\n"
