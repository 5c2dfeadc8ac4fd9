"""Turns the bytes of a batch into columns for the store. Pure, and no input makes it raise."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from mosaic_worker.events import Event, Kind, load_line, malformed, read_event
from mosaic_worker.events.reading import tidy
from mosaic_worker.events.values import HIGHEST, LOWEST, integer, name, number, time
from mosaic_worker.events.vocabulary import FORMER_NAMES, NESTS

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LOG_LINE_BYTES", "TEAM", "Episode", "Journal", "Point", "read_journal", "read_log", "unreadable"]

LOG_LINE_BYTES = 64 * 1024
"""The part of a log line that is stored; a longer line is usually binary output."""
TEAM = ""
"""The agent of a row that names none: the whole team, or the only agent."""

# One call parses a whole batch, as an array of its lines with this number between them. The number is drawn when the
# process starts, so no worker can write it: if it is at every second place and no line is missing, then each line was
# one JSON value. (A bare comma would accept `[` and `]` on two lines.)
_BETWEEN = secrets.randbits(52) | 1 << 52
_JOINT = f",{_BETWEEN},".encode()

# Where a complete step of the older dialect may still have its agent or its reward.
_FORMER_PLACES = (*NESTS, *FORMER_NAMES["agent"])

_NOTHING = type(None)
_NUMBERS = {float, int, _NOTHING}


class Point(NamedTuple):
    """One value of a scalar."""

    metric: str
    agent: str
    place: int
    step: int
    value: float | None
    ts: float | None


class Episode(NamedTuple):
    """One finished episode, of the team or of one agent."""

    place: int
    agent: str
    step: int
    ts: float | None
    episode: int | None
    value: float | None
    length: int | None
    seed: int | None


@dataclass(slots=True)
class Journal:
    """The lines of a batch as columns. A *place* is the index of a line in the batch."""

    kinds: list[str]
    times: list[float | None]
    steps: list[int | None]
    values: list[float | None]
    lines: list[str | bytes]
    events: list[tuple[int, Event]] = field(default_factory=list)  # those that are not steps, with their places
    points: list[Point] = field(default_factory=list)
    episodes: list[Episode] = field(default_factory=list)
    agents: list[tuple[int, str]] = field(default_factory=list)  # of the steps that name one
    top_step: int | None = None
    plain: bool = False  # every line is a step of the team with a step, a time and a reward

    @property
    def malformed(self) -> list[tuple[int, str]]:
        """Place and reason of each malformed line."""
        broken = [(place, event) for place, event in self.events if event.kind == Kind.MALFORMED]
        return [(place, event.text("reason") or "no reason given") for place, event in broken]

    @property
    def has_begun(self) -> bool:
        """Whether any line reports progress at a step, as `course` looks for it."""
        progress = {"step", "episode", "scalars"}
        return any(kind in progress and step is not None for kind, step in zip(self.kinds, self.steps, strict=True))


def read_log(data: bytes) -> list[str | bytes]:
    """Split a log into lines, and cut long ones."""
    return [line[:LOG_LINE_BYTES] if len(line) > LOG_LINE_BYTES else line for line in _split(data)]


def read_journal(data: bytes, last_step: int = 0) -> Journal:
    """Read the lines of a batch, each ended by a newline. An episode without a step takes `last_step`."""
    lines = _split(data)
    objects = _load_joined(data, len(lines))
    if objects is None:
        objects = [_load(line) for line in data[:-1].split(b"\n")] if data else []
    try:
        kinds = [each["event"] for each in objects]
    except (KeyError, TypeError):
        objects = [tidy(each) for each in objects]
        kinds = [each["event"] for each in objects]
    steps = [each.get("step") for each in objects]
    times = [each.get("ts") for each in objects]
    values = [each.get("reward") for each in objects]
    agents = [each.get("agent") for each in objects]
    # Steps under the present names are complete now; everything else is read one by one.
    if {int}.issuperset(map(type, steps)) and None not in times:
        others = [index for index, kind in enumerate(kinds) if kind != "step"]
    else:
        odd = zip(kinds, steps, times, strict=True)
        others = [
            index for index, (kind, step, ts) in enumerate(odd) if kind != "step" or type(step) is not int or ts is None
        ]
    # One search of the bytes spares most batches, those of a single agent, a look at every line.
    incomplete = None in values
    if incomplete or (None in agents and b'"agent' in data):
        pairs = zip(values, agents, strict=True)
        plain = (index for index, (value, agent) in enumerate(pairs) if value is None or agent is None)
        others = sorted({*others, *(index for index in plain if not objects[index].keys().isdisjoint(_FORMER_PLACES))})
    journal = Journal(kinds, times, steps, values, lines)
    for index in others:
        event = read_event(objects[index])
        agents[index] = event.fields.get("agent")
        _place(journal, index, event)
    journal.times = _all_numbers(times, of=time)
    journal.values = _all_numbers(values, of=number)
    journal.steps, journal.top_step = _all_integers(steps)
    if not {_NOTHING}.issuperset(map(type, agents)):
        named = ((index, name(agent)) for index, agent in enumerate(agents) if agent is not None)
        journal.agents = [(index, agent) for index, agent in named if agent and kinds[index] == "step"]
    # Cleaning, which makes another list, can leave holes.
    cleaned = journal.values is not values or journal.steps is not steps
    journal.plain = not (others or incomplete or cleaned or journal.agents)
    if journal.events:
        _fill(journal, last_step)
    return journal


def unreadable(line: bytes, error: Exception) -> Journal:
    """Make a malformed event of a single line that could not be read; only its bytes are kept."""
    event = read_event(malformed(f"cannot be read: {type(error).__name__}: {error}"))
    return Journal([event.kind], [None], [None], [None], [_text_or_bytes(line)], [(0, event)])


def _place(journal: Journal, index: int, event: Event) -> None:
    """Put what an event says into the columns; all but plain steps are also kept beside them."""
    journal.kinds[index] = event.kind
    journal.times[index] = event.ts
    journal.steps[index] = event.step
    journal.values[index] = event.value
    if event.kind != "step":
        journal.events.append((index, event))


def _fill(journal: Journal, last_step: int) -> None:
    """Add the rows of scalars and episodes; one without a step takes that of the last line before it that has one."""
    steps = journal.steps
    journal.steps = steps.copy()  # filled in, so that attempts can be joined by step
    seen = 0
    for index, event in journal.events:
        kind, ts, step, _ = event
        if kind not in {"episode", "scalars"}:
            continue
        if step is None:
            last_step = next((each for each in reversed(steps[seen:index]) if each is not None), last_step)
            step = last_step or event.integer("episode") or 0
        else:
            last_step = step
        seen = index
        journal.steps[index] = step
        agent = event.agent or TEAM
        if kind == "scalars":
            scalars = event.scalars
            journal.points += [Point(metric, agent, index, step, value, ts) for metric, value in scalars.items()]
            continue
        row = Episode(
            index,
            agent,
            step,
            ts,
            event.integer("episode"),
            journal.values[index],
            event.integer("length"),
            event.integer("seed"),
        )
        journal.episodes.append(row)
        if agent == TEAM and "returns" in event.fields:
            returns = event.returns
            journal.episodes += [row._replace(agent=each, value=value) for each, value in returns.items()]


# ── bytes to objects ────────────────────────────────────────────────────────────────────────────────


def _split(data: bytes) -> list[str | bytes]:
    """Cut into lines: text where it is UTF-8, bytes where it is not."""
    lines: list[str | bytes]
    try:
        lines = data.decode().split("\n")  # type: ignore[assignment]
    except UnicodeDecodeError:
        lines = [_text_or_bytes(line) for line in data.split(b"\n")]
    lines.pop()  # the empty string after the last newline
    return lines


def _text_or_bytes(line: bytes) -> str | bytes:
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line


def _load_joined(data: bytes, count: int) -> list[Any] | None:
    """Parse all lines at once; None if not every line is a JSON value."""
    try:
        found = orjson.loads(b"[%b]" % data[:-1].replace(b"\n", _JOINT))
    except ValueError:
        return None
    if len(found) != 2 * count - 1 or found[1::2].count(_BETWEEN) != count - 1:
        return None
    return found[::2]  # type: ignore[no-any-return]


def _load(line: bytes) -> Any:
    """Parse one line of a batch that is not JSON throughout."""
    try:
        return orjson.loads(line)
    except ValueError:
        return load_line(line)


# ── values of any type to what a column holds ───────────────────────────────────────────────────────


def _all_numbers(column: list[Any], of: Callable[[object], float | None]) -> list[float | None]:
    """Clean a column only if something in it needs cleaning."""
    types = set(map(type, column))
    if types <= {float, _NOTHING}:
        return column
    if types <= _NUMBERS and all(LOWEST <= each <= HIGHEST for each in column if type(each) is int):
        return column
    return [of(each) for each in column]


def _all_integers(column: list[Any]) -> tuple[list[int | None], int | None]:
    """Clean a column of integers if need be; also return the largest."""
    present = [each for each in column if each is not None] if None in column else column
    if not present:
        return column, None
    if {int}.issuperset(map(type, present)) and min(present) >= LOWEST and (top := max(present)) <= HIGHEST:
        return column, top
    clean = [integer(each) for each in column]
    return clean, max((each for each in clean if each is not None), default=None)
