"""The series of a run, as SQL: rewards, episodes and scalars, of one agent or of the team."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from mosaic_services.telemetry.columns import TEAM
from mosaic_services.telemetry.course import span

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Sequence

    from mosaic_services.telemetry.course import Part

__all__ = ["Source", "choose", "find_names", "has_team"]

_OF_EPISODES = {"episode_return": "value", "episode_length": "length"}
_NO_ROWS = "SELECT 0 AS step, 0 AS value, 0 AS ts, 0 AS place, 0 AS stream, 0 AS unit, '' AS agent WHERE 0"
# How the values of several agents become one of the team; the mean for scalars.
_TEAM_VALUE = {"reward": "sum", "episode_return": "sum", "episode_length": "max"}


class Source(NamedTuple):
    """The rows of a series before thinning, as SQL with its values: step, value, ts, place."""

    sql: str
    values: list[Any]

    def count(self, db: sqlite3.Connection) -> int:
        """Count the points."""
        count: int = db.execute(f"SELECT count(*) FROM ({self.sql})", self.values).fetchone()[0]  # noqa: S608
        return count

    def thinned(self, db: sqlite3.Connection, most: int) -> tuple[list[tuple[Any, ...]], int]:
        """Return at most `most` rows of step, mean, minimum, maximum and ts, and the number of points behind them."""
        points, low, high = db.execute(
            f"SELECT count(*), min(step), max(step) FROM ({self.sql})",  # noqa: S608
            self.values,
        ).fetchone()
        if points <= most:
            sql = f"SELECT step, value, value, value, ts FROM ({self.sql}) ORDER BY step, place"  # noqa: S608
            return db.execute(sql, self.values).fetchall(), points
        rows = db.execute(
            "SELECT CAST(avg(step) AS INTEGER), avg(value), min(value), max(value), avg(ts)"  # noqa: S608
            f" FROM ({self.sql}) GROUP BY CAST((step - ?) * ? / ? AS INTEGER) ORDER BY 1",
            (*self.values, low, float(most), float(high - low + 1)),
        ).fetchall()
        return rows, points


def choose(
    db: sqlite3.Connection,
    metric: str,
    parts: Sequence[Part],
    agent: str | None = None,
    first_step: int | None = None,
    last_step: int | None = None,
) -> Source:
    """Find the rows of a series: of one agent, or of the team.

    The team has the rows that name no agent. If there are none, its values are made from those of all agents for the
    same episode or step.
    """
    sql: list[str] = []
    values: list[Any] = []
    is_scalar = metric != "reward" and not (metric in _OF_EPISODES and _has_episodes(db, parts))
    for part in parts:
        part_sql, part_values = _scalars(metric, part) if is_scalar else _rows(db, metric, part)
        limits = f" AND step <= {part.last_step}"
        limits += "" if first_step is None else f" AND step >= {first_step}"
        limits += "" if last_step is None else f" AND step <= {last_step}"
        sql.append(part_sql + limits)
        values += part_values
    rows = " UNION ALL ".join(sql) or _NO_ROWS
    if agent is None:
        is_whole = f"SELECT EXISTS (SELECT 1 FROM ({rows}) WHERE agent = '')"  # noqa: S608
        if not db.execute(is_whole, values).fetchone()[0]:
            fold = _TEAM_VALUE.get(metric, "avg")
            return Source(
                f"SELECT max(step) AS step, {fold}(value) AS value, max(ts) AS ts, min(place) AS place"  # noqa: S608
                f" FROM ({rows}) GROUP BY stream, unit",
                values,
            )
    return Source(f"SELECT step, value, ts, place FROM ({rows}) WHERE agent = ?", [*values, agent or TEAM])  # noqa: S608


def _has_episodes(db: sqlite3.Connection, parts: Sequence[Part]) -> bool:
    sql = "SELECT EXISTS (SELECT 1 FROM episodes WHERE stream = ?)"
    return any(db.execute(sql, (part.stream,)).fetchone()[0] for part in parts)


def has_team(db: sqlite3.Connection, parts: Sequence[Part]) -> bool:
    """Whether a run has episodes that name no agent."""
    sql = "SELECT EXISTS (SELECT 1 FROM episodes WHERE stream = ? AND agent = '' AND step <= ?)"
    return any(db.execute(sql, (part.stream, part.last_step)).fetchone()[0] for part in parts)


def find_names(db: sqlite3.Connection, parts: Sequence[Part]) -> tuple[list[str], list[str]]:
    """Return the names of all series that a run may have, and of its agents."""
    metrics: set[str] = set()
    agents: set[str] = set()
    for stream, *_ in parts:
        metrics.update(_distinct(db, "SELECT min(metric) FROM points WHERE stream = ? AND metric > ?", stream))
        agents.update(_distinct(db, "SELECT min(agent) FROM episodes WHERE stream = ? AND agent > ?", stream))
        for metric in metrics:
            sql = "SELECT min(agent) FROM points WHERE stream = ? AND metric = ? AND agent > ?"
            agents.update(_distinct(db, sql, stream, metric))
        found = db.execute("SELECT DISTINCT agent FROM agents WHERE id BETWEEN ? AND ?", span(stream))
        agents.update(agent for (agent,) in found)
    return ["reward", *_OF_EPISODES, *sorted(metrics)], sorted(agents)


def _distinct(db: sqlite3.Connection, sql: str, *values: object) -> Iterator[str]:
    """Skip from one name to the next in an index, much faster than reading all rows."""
    name: str | None = ""
    while (name := db.execute(sql, (*values, name)).fetchone()[0]) is not None:
        yield name


def _scalars(metric: str, part: Part) -> tuple[str, list[Any]]:
    """Return SQL for an attempt's points of a scalar, without bounds of steps."""
    return (
        "SELECT step, value, ts, number AS place, stream, agent, step AS unit FROM points"
        " WHERE stream = ? AND metric = ?"
    ), [part.stream, metric]


def _rows(db: sqlite3.Connection, metric: str, part: Part) -> tuple[str, list[Any]]:
    """Return SQL for an attempt's rewards or episodes; rows of different agents with one `unit` belong together."""
    stream = part.stream
    if (column := _OF_EPISODES.get(metric)) is not None:
        return (
            f"SELECT step, {column} AS value, ts, number AS place, stream, agent,"  # noqa: S608
            f" coalesce(episode, -number - 1) AS unit FROM episodes WHERE stream = ?"
            f"{' AND length IS NOT NULL' if column == 'length' else ''}"
        ), [stream]
    ids = span(stream)
    condition = "WHERE events.id BETWEEN ? AND ? AND kind = 'step' AND step IS NOT NULL AND value IS NOT NULL"
    columns = f"step, value, ts, events.id AS place, {stream} AS stream, step AS unit"
    if db.execute("SELECT 1 FROM agents WHERE id BETWEEN ? AND ?", ids).fetchone() is None:
        return f"SELECT {columns}, '' AS agent FROM events {condition}", [*ids]  # noqa: S608
    named = "coalesce(agents.agent, '') AS agent FROM events LEFT JOIN agents ON agents.id = events.id"
    return f"SELECT {columns}, {named} {condition}", [*ids]
