"""The report's pages: plain HTML without scripts, which asks no other machine for anything."""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING, Any

from mosaic_services.report.numbers import percent
from mosaic_services.report.style import POLICY, STYLE, shade_of
from mosaic_services.report.tables import decimals_of
from mosaic_services.report.texts import all_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from mosaic_services.report.analysis import Analysis
    from mosaic_services.report.figures import Figure
    from mosaic_services.report.tables import Cell, Table
    from mosaic_services.statistics.episodes import Play

__all__ = ["Videos", "episode_pages", "index_page", "place_of"]

ROWS_PER_PAGE = 1_000
_ROWS_ON_THE_INDEX = 100
_VIDEOS_ON_THE_INDEX = 8
Videos = dict[tuple[str, int], str]
"""Where the video of an episode of a lineup is, in the report's folder."""


def place_of(found: Analysis, lineup: str, episode: int) -> str:
    """Where the record of an episode stands, from the report's folder."""
    play = found.plays[lineup]
    row = next((place for place, record in enumerate(play.records) if record["episode"] == episode), 0)
    return f"episodes/{_file(found, lineup, row // ROWS_PER_PAGE)}#e{episode}"


def index_page(found: Analysis, figures: Sequence[Figure], videos: Videos, rerun: str) -> str:
    """The page that opens."""
    parts = [f"<h1>{escape(found.name)}</h1>", f'<p class="facts">{_facts(found)}</p>']
    if found.warnings:
        listed = "".join(f"<li>{escape(each)}</li>" for each in found.warnings)
        parts.append(f'<section class="warnings"><h2>Before you trust these numbers</h2><ul>{listed}</ul></section>')
    tables = all_tables(found)

    def link(cell: Cell) -> str:
        return place_of(found, *cell.link) if cell.link else ""

    parts.append(_table(tables[0], link))
    parts.append(_figures(figures))
    parts += [_table(table, link) for table in tables[1:]]
    if found.decision:
        parts.append(f"<h2>Stopping rule</h2><p>{escape(found.decision.words)}</p>")
    parts += [_videos(found, videos), _every_seed(found, videos), _provenance(found, rerun), _files()]
    return _page(found.name, "\n".join(part for part in parts if part))


def episode_pages(found: Analysis, videos: Videos) -> Iterator[tuple[str, str]]:
    """File names and pages with every record, a thousand a page."""
    for name, play in found.plays.items():
        pages = max(1, -(-len(play.records) // ROWS_PER_PAGE))
        for page in range(pages):
            records = play.records[page * ROWS_PER_PAGE : (page + 1) * ROWS_PER_PAGE]
            body = [
                f'<p><a href="../index.html">{escape(found.name)}</a></p><h1>{escape(name)}</h1>',
                f'<p class="facts">{_played_by(play)}</p>',
                _page_links(found, name, page, pages),
                _records(name, records, videos),
                "<h2>Play one again</h2>",
                f"<pre>mosaic replay {escape(found.name)} --lineup {escape(name)} --episode N</pre>",
                '<p class="note">Replays the episode from its record and checks that every action is the same.</p>',
            ]
            yield _file(found, name, page), _page(f"{name} · {found.name}", "\n".join(body))


def _page(title: str, body: str) -> str:
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    head += '<meta name="viewport" content="width=device-width, initial-scale=1">'
    head += f"<title>{escape(title)}</title><style>{STYLE}</style>"
    unbroken = body.replace(" %", "&nbsp;%")
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{unbroken}\n</body></html>\n'


def _facts(found: Analysis) -> str:
    environment = found.experiment.get("environment") or {}
    counts = [len(play.records) for play in found.plays.values()]
    each = (
        f"{counts[0]:,} episodes each" if len(set(counts)) == 1 else f"{min(counts):,} to {max(counts):,} episodes each"
    )
    facts = [str(environment.get("id", "")), f"{len(counts)} lineups", each, f"intervals: {percent(found.confidence)}"]
    return escape(" · ".join(fact for fact in facts if fact))


def _table(table: Table, link: Callable[[Cell], str]) -> str:
    head = "".join(f"<th{_classes(table, name)}>{escape(name.strip())}</th>" for name in table.columns)
    rows = []
    for row in table.rows:
        cells = []
        for name, cell in zip(table.columns, row, strict=True):
            text = escape(cell.text).replace("\n", "<br>")
            if target := link(cell):
                text = f'<a href="{escape(target, quote=True)}">{text}</a>'
            cells.append(f"<td{_classes(table, name, cell.shade)}>{text}</td>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    body = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f'<section id="{table.name}"><h2>{escape(table.title)}</h2><div class="wide">{body}</div>{note}</section>'


def _classes(table: Table, name: str, share: float | None = None) -> str:
    """Return the attribute with the classes of a cell in a column; nothing if it has none."""
    classes = ["left"] * (name in table.left) + ["message"] * (name == "message" and name in table.left)
    if share is not None and (shade := shade_of(share)):
        classes.append(shade)
    return f' class="{" ".join(classes)}"' if classes else ""


def _figures(figures: Sequence[Figure]) -> str:
    if not figures:
        return ""
    shown = "".join(
        f"<figure><h3>{escape(each.title)}</h3>{each.inline}<figcaption>{escape(each.caption)} "
        f'<a href="figures/{each.name}.pdf">PDF</a> <a href="figures/{each.name}.svg">SVG</a></figcaption></figure>'
        for each in figures
    )
    return f'<section><h2>Figures</h2><div class="figures">{shown}</div></section>'


def _every_seed(found: Analysis, videos: Videos) -> str:
    """The first episodes of all lineups side by side, and where the rest is."""
    show = decimals_of(found)
    names = list(found.plays)
    by_number = {name: {record["episode"]: record for record in play.records} for name, play in found.plays.items()}
    numbers = sorted({number for records in by_number.values() for number in records})
    rows = []
    for number in numbers[:_ROWS_ON_THE_INDEX]:
        seeds = {record.get("env_seed") for name in names if (record := by_number[name].get(number))}
        cells = [f"<td>{number}</td><td>{escape(str(seeds.pop()) if len(seeds) == 1 else 'differ')}</td>"]
        for name in names:
            record = by_number[name].get(number)
            if record is None:
                cells.append("<td></td>")
                continue
            text = _outcome(found.plays[name], record) or show.text(_total(record)) or "no score"
            marks = (" ⚠" if record.get("failures") else "") + (" ▶" if (name, number) in videos else "")
            cells.append(f'<td><a href="{place_of_row(found, name, number)}">{escape(text)}</a>{marks}</td>')
        rows.append(f"<tr>{''.join(cells)}</tr>")
    head = "".join(f"<th>{escape(name)}</th>" for name in ("episode", "seed", *names))
    more = "".join(
        f'<li><a href="episodes/{_file(found, name, 0)}">{escape(name)}</a>: all {len(play.records):,} episodes</li>'
        for name, play in found.plays.items()
    )
    note = f"The first {_ROWS_ON_THE_INDEX} episodes. " if len(numbers) > _ROWS_ON_THE_INDEX else ""
    return (
        '<section id="episodes"><h2>Every seed</h2><div class="wide tall">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        f'<p class="note">{note}A score leads to the record of its episode. ⚠: a policy failed. ▶: it has a video.</p>'
        f"<ul>{more}</ul></section>"
    )


def place_of_row(found: Analysis, lineup: str, episode: int) -> str:
    """As `place_of`, quoted for an attribute."""
    return escape(place_of(found, lineup, episode), quote=True)


def _total(record: Mapping[str, Any]) -> float | None:
    returns = record["returns"]
    return float(sum(returns.values())) if returns and None not in returns.values() else None


def _outcome(play: Play, record: Mapping[str, Any]) -> str:
    """Who won, in a game."""
    winners = record.get("winners")
    if not play.competitive or winners is None:
        return ""
    won = dict.fromkeys(play.lineup.operator_of(agent) for agent in winners)
    return " and ".join(won) or "draw"


def _videos(found: Analysis, videos: Videos) -> str:
    if not videos:
        return ""
    shown = "".join(
        f"<figure>{_moving(path)}<figcaption>"
        f'<a href="{place_of_row(found, name, number)}">{escape(name)}, episode {number}</a></figcaption></figure>'
        for (name, number), path in list(videos.items())[:_VIDEOS_ON_THE_INDEX]
    )
    return f'<section id="videos"><h2>Videos</h2><div class="figures">{shown}</div></section>'


def _moving(path: str) -> str:
    """A film, or an animated picture."""
    source = escape(path, quote=True)
    if path.endswith((".png", ".gif", ".webp")):
        return f'<img loading="lazy" alt="" src="{source}">'
    return f'<video controls preload="metadata" src="{source}"></video>'


def _provenance(found: Analysis, rerun: str) -> str:
    shown = {
        key: found.experiment[key]
        for key in ("environment", "operators", "seeds", "failures", "until", "provenance")
        if found.experiment.get(key)
    }
    again = f"<h2>Run it again</h2><pre>{escape(rerun)}</pre>" if rerun else ""
    return f'{again}<section id="provenance"><h2>Provenance</h2>{_definitions(shown)}</section>'


def _definitions(value: Any) -> str:
    if isinstance(value, dict):
        known = {key: each for key, each in value.items() if each not in (None, "", [], {})}
        listed = "".join(f"<dt>{escape(str(key))}</dt><dd>{_definitions(each)}</dd>" for key, each in known.items())
        return f"<dl>{listed}</dl>"
    if isinstance(value, list):
        return ", ".join(_definitions(each) for each in value)
    return escape(str(value))


def _files() -> str:
    named = {
        "report.md": "Markdown",
        "scores.tex": "LaTeX",
        "scores.csv": "scores",
        "comparisons.csv": "comparisons",
        "episodes.csv": "every episode",
        "summary.json": "all numbers",
        "episodes.jsonl": "records",
        "experiment.json": "experiment",
    }
    listed = " · ".join(f'<a href="{file}">{text} ({file.rpartition(".")[2]})</a>' for file, text in named.items())
    return f"<h2>Files</h2><p>{listed}</p>"


def _played_by(play: Play) -> str:
    agents = ", ".join(f"{agent}: {operator}" for agent, operator in play.lineup.agents.items())
    return escape(f"{len(play.records):,} episodes · {agents.replace('*', 'all agents')}")


def _records(name: str, records: Sequence[Mapping[str, Any]], videos: Videos) -> str:
    agents = list(dict.fromkeys(agent for record in records for agent in record["returns"]))
    several = len(agents) > 1
    columns = [
        "episode",
        "seed",
        "score",
        *(agents if several else []),
        "length",
        "ended",
        "won",
        "action hash",
        "notes",
    ]
    columns = [
        each for each in columns if each != "won" or any(record.get("winners") is not None for record in records)
    ]
    rows = []
    for record in records:
        number, winners, total = record["episode"], record.get("winners"), _total(record)
        cells = [_text(record.get("env_seed")), "" if total is None else f"{total:,.6g}"]
        cells += [_text(record["returns"].get(agent)) for agent in agents] if several else []
        cells += [_text(record.get("length")), escape(str(record.get("ended") or ""))]
        if "won" in columns:
            cells.append("" if winners is None else escape(", ".join(winners)) or "draw")
        digest = escape(str(record.get("action_hash") or ""))
        cells.append(f'<code title="{digest}">{digest[:12]}</code>')
        notes = [escape(_failure(each)) for each in record.get("failures") or ()]
        if path := videos.get((name, number)):
            notes.insert(0, f'<a href="../{escape(path)}">video</a>')
        played = "</td><td>".join([str(number), *cells])
        rows.append(f'<tr id="e{number}"><td>{played}</td><td class="left message">{"; ".join(notes)}</td></tr>')
    head = "".join(f"<th{' class=left' if each == 'notes' else ''}>{escape(each)}</th>" for each in columns)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'


def _failure(failure: Mapping[str, Any]) -> str:
    said = f"{failure.get('operator', '')} {failure.get('kind', 'failed')} at step {failure.get('step', '?')}"
    then = f", then {failure['then']}" if failure.get("then") else ""
    return f"{said}{then}: {failure.get('message', '')}"


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.6g}"
    return "" if value is None else escape(str(value))


def _page_links(found: Analysis, name: str, page: int, pages: int) -> str:
    if pages == 1:
        return ""
    links = (
        f"<b>{each + 1}</b>" if each == page else f'<a href="{_file(found, name, each)}">{each + 1}</a>'
        for each in range(pages)
    )
    return f'<p class="pages">page {"".join(links)}</p>'


def _file(found: Analysis, lineup: str, page: int) -> str:
    number = list(found.plays).index(lineup)
    slug = re.sub(r"[^A-Za-z0-9]+", "-", lineup).strip("-")[:40]
    return f"{number}-{slug}-{page + 1}.html"
