"""The table that `mosaic eval` prints at its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mosaic_bus.wording import duration
from mosaic_services.report.analysis import analyse
from mosaic_services.report.models import ModelUse, count_use
from mosaic_services.report.numbers import probability
from mosaic_services.report.tables import headline

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mosaic_services.report.analysis import Analysis

__all__ = ["terminal_lines"]

_MOST_SENTENCES = 5


def terminal_lines(
    experiment: Mapping[str, Any],
    records: Iterable[Mapping[str, Any]],
    *,
    report: str = "",
    rerun: str = "",
) -> list[str]:
    """Lines for a terminal: what was played, a row for each operator or lineup, who beats whom, warnings."""
    return lines_of(analyse(experiment, records), report=report, rerun=rerun)


def lines_of(found: Analysis, *, report: str = "", rerun: str = "") -> list[str]:
    """As `terminal_lines`, of an analysis that is there."""
    table = headline(found)
    # In a terminal one interval is enough; the report has the others.
    names = [name or "operator" for name in table.columns]
    dropped = {"gap", "games" if found.contest else "episodes", *([] if found.contest else [names[5]])}
    kept = [place for place, name in enumerate(names) if name not in dropped]
    cells = [[names[place].strip() for place in kept]]
    cells += [[row[place].text for place in kept] for row in table.rows]
    widths = [max(len(line[column]) for line in cells) for column in range(len(kept))]
    lines = [_summary(found)]
    for line in cells:
        padded = [line[0].ljust(widths[0])]
        padded += [text.rjust(width) for text, width in zip(line[1:], widths[1:], strict=True)]
        lines.append("  ".join(padded).rstrip())
    lines += _sentences(found)
    lines += [_use(each) for each in count_use(found.plays)]
    lines += [f"warning: {warning}" for warning in found.warnings]
    if found.decision:
        lines.append(found.decision.words)
    places = [f"{name}: {value}" for name, value in (("report", report), ("rerun", rerun)) if value]
    return [*lines, *(["    ".join(places)] if places else [])]


def _summary(found: Analysis) -> str:
    counts = [len(play.records) for play in found.plays.values()]
    episodes = f"{counts[0]:,}" if len(set(counts)) == 1 else f"{min(counts):,} to {max(counts):,}"
    unit = "episode" if episodes == "1" else "episodes"
    what = ("lineup" if found.contest else "operator") + ("" if len(counts) == 1 else "s")
    parts = [f"experiment {found.name}", f"{episodes} {unit} x {len(counts)} {what}"]
    seeds = sorted(
        {seed for play in found.plays.values() for r in play.scored if (seed := r.get("env_seed")) is not None}
    )
    if seeds and seeds[-1] - seeds[0] == len(seeds) - 1:
        parts.append(f"seeds {seeds[0]}..{seeds[-1]}" if len(seeds) > 1 else f"seed {seeds[0]}")
    elif (root := found.experiment.get("seeds", {}).get("root")) is not None:
        parts.append(f"seeds from root {root}")
    hosts, shards = found.experiment.get("hosts"), found.experiment.get("shards")
    placed = [f"{len(hosts)} {'host' if len(hosts) == 1 else 'hosts'}"] if isinstance(hosts, list) and hosts else []
    placed += [f"{shards} {'shard' if shards == 1 else 'shards'}"] if isinstance(shards, int) else []
    parts += [", ".join(placed)] if placed else []
    if isinstance(seconds := found.experiment.get("elapsed_s"), (int, float)):
        parts.append(duration(seconds))
    return "   ".join(parts)


def _use(each: ModelUse) -> str:
    """What a language model did and cost."""
    said = f"{each.operator} in {each.lineup}: {each.answers:,} answers, {each.invalid_rate:.1%} invalid"
    costs = [(each.usd_per_episode, "an episode"), (each.usd_per_point, "a point of return")]
    return said + "".join(f", {usd:.2g} USD {what}" for usd, what in costs if usd is not None)


def _sentences(found: Analysis) -> list[str]:
    if found.contest:
        said = []
        if found.contest.ratings.first_mover:
            advantage, (low, high) = found.contest.ratings.first_mover
            said.append(f"moving first is worth {advantage:.0f} rating points [{low:.0f}, {high:.0f}]")
        return said + [
            f"no clear order: {', '.join(group)} beat each other in a circle" for group in found.contest.cycles
        ]
    lines = []
    for pair in found.pairs[:_MOST_SENTENCES]:
        (low, high), point = pair.improvement.interval, pair.improvement.probability
        shown = f"{probability(point)} [{probability(low)}, {probability(high)}]"
        if low > 0.5 or high < 0.5:  # noqa: PLR2004 - one half: neither is better
            lines.append(f"{pair.first} beats {pair.second} with probability {shown}")
        else:
            lines.append(f"{pair.first} or {pair.second}: undecided, the first scores higher with probability {shown}")
    more = len(found.pairs) - len(lines)
    return [*lines, *([f"{more} more comparisons are in the report"] if more > 0 else [])]
