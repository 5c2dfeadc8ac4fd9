"""The series of a run: rewards of steps, episodes and scalars, each of one agent or of the team, and their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from mosaic_services.telemetry.columns import TEAM
from mosaic_services.telemetry.course import LAST_NUMBER, NUMBER_BITS, span

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Sequence

    from mosaic_services.telemetry.course import Part

__all__ = [
    "EPISODE",
    "SCALAR",
    "STEP",
    "Found",
    "Name",
    "choose",
    "find_all",
    "has_team",
    "read_blocks",
    "read_folded",
    "read_points",
]

STEP, EPISODE, SCALAR = "step", "episode", "scalar"
"""Where the points of a series come from."""
_COLUMN = {"episode_return": "value", "episode_length": "length"}
# How the values of several agents become one of the team; the mean for scalars.
_TEAM_VALUE = {"reward": "sum", "episode_return": "sum", "episode_length": "max"}


class Name(NamedTuple):
    """What tells the series of a stream apart."""

    source: str
    metric: str
    agent: str


class Found(NamedTuple):
    """A series of one part of a run. Without an id, it has to be made from the series of the agents."""

    part: Part
    id: int | None
    name: Name


def find_all(db: sqlite3.Connection, parts: Sequence[Part]) -> tuple[list[str], list[str]]:
    """Return the names of all metrics of a run, and of its agents."""
    metrics: set[str] = set()
    agents: set[str] = set()
    for part in parts:
        for source, metric, agent in db.execute(
            "SELECT source, metric, agent FROM series WHERE stream = ?", (part.stream,)
        ):
            if source != SCALAR or metric != "reward":  # the name is that of the steps' rewards
                metrics.add(metric)
            agents.add(agent)
    return sorted(metrics), sorted(agents - {TEAM})


def choose(db: sqlite3.Connection, metric: str, parts: Sequence[Part], agent: str | None = None) -> list[Found]:
    """Find a series in the parts of a run: of one agent, or of the team.

    The team has the points that name no agent. If there are none, its values are made from those of all agents for
    the same episode or step.
    """
    rows = [
        (part, series, Name(source, metric, owner))
        for part in parts
        for series, source, owner in db.execute(
            "SELECT id, source, agent FROM series WHERE stream = ? AND metric = ? ORDER BY agent", (part.stream, metric)
        )
    ]
    source = STEP if metric == "reward" else SCALAR
    if metric in _COLUMN and any(name.source == EPISODE for _, _, name in rows):
        source = EPISODE
    found = [Found(*row) for row in rows if row[2].source == source]
    if agent is None and found and not any(each.name.agent == TEAM for each in found):
        return [Found(part, None, Name(source, metric, TEAM)) for part in dict.fromkeys(each.part for each in found)]
    return [each for each in found if each.name.agent == (agent or TEAM)]


def has_team(db: sqlite3.Connection, parts: Sequence[Part]) -> bool:
    """Whether a run has episodes that name no agent."""
    sql = "SELECT EXISTS (SELECT 1 FROM episodes WHERE stream = ? AND agent = '' AND step <= ?)"
    return any(db.execute(sql, (part.stream, part.last_step)).fetchone()[0] for part in parts)


def read_blocks(
    db: sqlite3.Connection,
    series: int,
    level: int,
    first: int,
    last: int = LAST_NUMBER,
    steps: tuple[int, int] | None = None,
) -> list[Any]:
    """Return the closed blocks of a level with numbers from `first` to `last`, and some step between `steps`."""
    sql = (
        "SELECT block, n, valued, total, low, high, first_step, last_step, ts FROM blocks"
        " WHERE series = ? AND level = ? AND block BETWEEN ? AND ?"
    )
    if steps is None:
        return db.execute(sql, (series, level, first, last)).fetchall()
    return db.execute(f"{sql} AND last_step >= ? AND first_step <= ?", (series, level, first, last, *steps)).fetchall()


def read_points(db: sqlite3.Connection, stream: int, name: Name, first: int = 0, last: int = LAST_NUMBER) -> list[Any]:
    """Return number, step, value and time of the points of lines from `first` to `last`."""
    source, metric, agent = name
    if source == SCALAR:
        return db.execute(
            "SELECT number, step, value, ts FROM points WHERE stream = ? AND metric = ? AND agent = ?"
            " AND number BETWEEN ? AND ?",
            (stream, metric, agent, first, last),
        ).fetchall()
    if source == EPISODE:
        column = _COLUMN[metric]
        whole = " AND length IS NOT NULL" if column == "length" else ""
        return db.execute(
            f"SELECT number, step, {column}, ts FROM episodes WHERE stream = ? AND agent = ?"  # noqa: S608
            f" AND number BETWEEN ? AND ?{whole}",
            (stream, agent, first, last),
        ).fetchall()
    ids = (stream << NUMBER_BITS | first, stream << NUMBER_BITS | min(last, LAST_NUMBER))
    sql = "SELECT events.id & ?, step, value, ts FROM events"
    condition = " WHERE events.id BETWEEN ? AND ? AND kind = 'step' AND step IS NOT NULL AND value IS NOT NULL"
    if db.execute("SELECT 1 FROM agents WHERE id BETWEEN ? AND ?", ids).fetchone() is None:
        return db.execute(sql + condition, (LAST_NUMBER, *ids)).fetchall() if agent == TEAM else []
    joined = f"{sql} LEFT JOIN agents ON agents.id = events.id{condition} AND coalesce(agents.agent, '') = ?"
    return db.execute(joined, (LAST_NUMBER, *ids, agent)).fetchall()


def read_folded(db: sqlite3.Connection, part: Part, name: Name, steps: tuple[int, int]) -> list[Any]:
    """Return the points of a team that only its agents report: one for each episode or step."""
    fold = _TEAM_VALUE.get(name.metric, "avg")
    begin, end = span(part.stream)
    values: tuple[Any, ...]
    if name.source == SCALAR:
        columns, values = "number, step, value, ts, step AS unit", (part.stream, name.metric)
        table = "points WHERE stream = ? AND metric = ?"
    elif name.source == EPISODE:
        column, values = _COLUMN[name.metric], (part.stream,)
        columns = f"number, step, {column} AS value, ts, coalesce(episode, -number - 1) AS unit"
        table = "episodes WHERE stream = ?" + (" AND length IS NOT NULL" if column == "length" else "")
    else:
        columns, values = f"id & {LAST_NUMBER} AS number, step, value, ts, step AS unit", (begin, end)
        table = "events WHERE id BETWEEN ? AND ? AND kind = 'step' AND step IS NOT NULL AND value IS NOT NULL"
    return db.execute(
        f"SELECT min(number), max(step), {fold}(value), max(ts)"  # noqa: S608
        f" FROM (SELECT {columns} FROM {table} AND step BETWEEN ? AND ?) GROUP BY unit ORDER BY 1",
        (*values, *steps),
    ).fetchall()
