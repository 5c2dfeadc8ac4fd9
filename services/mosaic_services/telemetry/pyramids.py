"""Keeps the pyramids of all series of a stream up to date while its lines are stored."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mosaic_services.telemetry.blocks import LEVELS, Closed, Tower, fold_points
from mosaic_services.telemetry.columns import TEAM
from mosaic_services.telemetry.series import EPISODE, SCALAR, STEP, Name, read_blocks, read_points

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterator, Sequence

    from mosaic_services.telemetry.columns import Journal

__all__ = ["Pyramids"]

_INSERT = "INSERT INTO blocks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"


class _Columns(NamedTuple):
    places: Sequence[int]
    steps: Sequence[int]
    values: Sequence[float | None]
    times: Sequence[float | None]


class Pyramids:
    """The towers of one stream by the names of its series. Begins with what the store has."""

    def __init__(self, db: sqlite3.Connection, stream: int, next_id: Callable[[], int]) -> None:
        self._db = db
        self._stream = stream
        self._next_id = next_id
        self._towers: dict[Name, tuple[int, Tower]] = {}
        closed: list[tuple[int, Closed]] = []
        for series, *name in db.execute("SELECT id, source, metric, agent FROM series WHERE stream = ?", (stream,)):
            tower = self._towers[Name(*name)] = (series, Tower())
            closed += [(series, each) for each in self._load(tower[1], series, Name(*name))]
        self._store(closed)

    def _load(self, tower: Tower, series: int, name: Name) -> list[Closed]:
        """Rebuild the open blocks of a series: of each level, from the closed blocks below it that it lacks."""
        closed: list[Closed] = []
        begin = 0  # the first line that is in no closed block
        for storey in range(len(LEVELS) - 1, -1, -1):
            row = self._db.execute(
                "SELECT max(block) FROM blocks WHERE series = ? AND level = ?", (series, LEVELS[storey])
            ).fetchone()
            begin = begin if row[0] is None else (row[0] + 1) << LEVELS[storey]
            if storey:
                below = LEVELS[storey] - LEVELS[storey - 1]
                rows = read_blocks(self._db, series, LEVELS[storey - 1], begin >> LEVELS[storey - 1])
                tower.add(((row[0] >> below, *row[1:]) for row in rows), closed, storey)
        rows = read_points(self._db, self._stream, name, begin)
        if rows:
            tower.add(fold_points(*zip(*rows, strict=True)), closed)
        return closed

    def add(self, first: int, journal: Journal) -> None:
        """Take the lines of a batch; `first` is the number of its first line."""
        closed: list[tuple[int, Closed]] = []
        for name, columns in _series_of(journal):
            found = self._towers.get(name)
            if found is None:
                found = self._towers[name] = (self._next_id(), Tower())
                self._db.execute(
                    "INSERT INTO series (id, stream, source, metric, agent) VALUES (?, ?, ?, ?, ?)",
                    (found[0], self._stream, *name),
                )
            series, tower = found
            places = columns.places
            whole = isinstance(places, range)
            numbers = range(first, first + len(places)) if whole else [first + place for place in places]
            new: list[Closed] = []
            tower.add(fold_points(numbers, columns.steps, columns.values, columns.times), new)
            closed += [(series, each) for each in new]
        self._store(closed)

    def _store(self, closed: list[tuple[int, Closed]]) -> None:
        if closed:
            self._db.executemany(_INSERT, [(series, level, *block) for series, (level, block) in closed])


def _series_of(journal: Journal) -> Iterator[tuple[Name, _Columns]]:
    """Return the points of each series of a batch, in the order of their lines."""
    yield from _rewards(journal)
    if not journal.episodes and not journal.points:
        return
    # By line, since cleaning can make two names equal: the last value wins, as it does in the tables.
    groups: dict[Name, dict[int, tuple[int, float | None, float | None]]] = {}
    for place, agent, step, ts, _, value, length, _ in journal.episodes:
        groups.setdefault(Name(EPISODE, "episode_return", agent), {})[place] = (step, value, ts)
        lengths = groups.setdefault(Name(EPISODE, "episode_length", agent), {})
        lengths.pop(place, None)
        if length is not None:
            lengths[place] = (step, float(length), ts)
    for metric, agent, place, step, value, ts in journal.points:
        groups.setdefault(Name(SCALAR, metric, agent), {})[place] = (step, value, ts)
    for name, points in groups.items():
        if points:
            steps, values, times = zip(*points.values(), strict=True)
            yield name, _Columns(list(points), steps, values, times)


def _rewards(journal: Journal) -> Iterator[tuple[Name, _Columns]]:
    kinds, steps, values, times = journal.kinds, journal.steps, journal.values, journal.times
    if journal.plain and (total := sum(values)) == total:  # type: ignore[arg-type]
        yield Name(STEP, "reward", TEAM), _Columns(range(len(kinds)), steps, values, times)  # type: ignore[arg-type]
        return
    agents = dict(journal.agents)
    groups: dict[str, list[tuple[int, int, float, float | None]]] = {}
    for place, (kind, step, value, ts) in enumerate(zip(kinds, steps, values, times, strict=True)):
        if kind == "step" and step is not None and value is not None and value == value:  # noqa: PLR0124 - NaN
            groups.setdefault(agents.get(place, TEAM), []).append((place, step, value, ts))
    for agent, rows in groups.items():
        yield Name(STEP, "reward", agent), _Columns(*zip(*rows, strict=True))
