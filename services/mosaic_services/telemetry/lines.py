"""From the bytes of a batch to columns for the store: pure, and no bytes whatever make it raise."""

from __future__ import annotations

import json
import math
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "LOG_LINE_BYTES",
    "MALFORMED",
    "Event",
    "Journal",
    "Point",
    "number",
    "read_event",
    "read_journal",
    "read_log",
    "text",
    "unreadable",
]

MALFORMED = "malformed"
LOG_LINE_BYTES = 64 * 1024
_LOW, _HIGH = -(2**63), 2**63 - 1  # what SQLite calls an integer
_NUMBER_CHARACTERS = 40
_TEXT_CHARACTERS = 500

# A whole batch is parsed with one call, as an array of its lines with this number between them. The number is
# drawn when the process starts, so no worker can write it: if it stands at every second place and nowhere
# else is a line missing, then each line was one JSON value. (A bare comma would accept `[` and `]` on two lines.)
_BETWEEN = secrets.randbits(52) | 1 << 52
_JOINT = f",{_BETWEEN},".encode()

_NOTHING = type(None)
_NUMBERS = {float, int, _NOTHING}
_OLD_NAMES = {
    "event": ("type",),
    "step": ("step_index",),
    "return": ("total_reward",),
    "episode": ("episode_index",),
    "ts": ("timestamp", "time"),
}
_NESTS = ("payload", "data")
_OLD_KEYS = {*_NESTS, *(old for names in _OLD_NAMES.values() for old in names)}


class Event(NamedTuple):
    """One event that is not a plain step: its place in the batch, and what it says under the present names."""

    place: int
    kind: str
    ts: float | None
    step: int | None
    fields: dict[str, Any]


class Point(NamedTuple):
    """One value of a series."""

    metric: str
    place: int
    step: int
    value: float | None
    ts: float | None


@dataclass(slots=True)
class Journal:
    """The lines of a batch of a journal as columns, ready for the store and the summary."""

    kinds: list[str]
    times: list[float | None]
    steps: list[int | None]
    values: list[float | None]
    lines: list[str | bytes]
    events: list[Event] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    top_step: int | None = None

    @property
    def malformed(self) -> list[tuple[int, str]]:
        """Index and reason of each malformed line."""
        broken = [each for each in self.events if each.kind == MALFORMED]
        return [(each.place, text(each.fields.get("reason")) or "no reason given") for each in broken]


def read_log(data: bytes) -> list[str | bytes]:
    """Split the lines of a log; they are never parsed, only cut when they are very long."""
    return [line[:LOG_LINE_BYTES] if len(line) > LOG_LINE_BYTES else line for line in _split(data)]


def read_journal(data: bytes, last_step: int = 0) -> Journal:
    """Read the lines of a batch, each ended by a newline. `last_step` stands in where an episode has no step."""
    lines = _split(data)
    objects = _load_joined(data, len(lines))
    if objects is None:
        objects = [_load(line) for line in data[:-1].split(b"\n")] if data else []
    try:
        kinds = [each["event"] for each in objects]
    except (KeyError, TypeError):
        objects = [_tidy(each) for each in objects]
        kinds = [each["event"] for each in objects]
    steps = [each.get("step") for each in objects]
    times = [each.get("ts") for each in objects]
    values = [each.get("reward") for each in objects]
    # What is a step under the present names is done; everything else is looked at one by one.
    if {int}.issuperset(map(type, steps)) and None not in times:
        others = [index for index, kind in enumerate(kinds) if kind != "step"]
    else:
        odd = zip(kinds, steps, times, strict=True)
        others = [
            index for index, (kind, step, ts) in enumerate(odd) if kind != "step" or type(step) is not int or ts is None
        ]
    if None in values:
        plain = (index for index, value in enumerate(values) if value is None)
        others = sorted({*others, *(index for index in plain if not objects[index].keys().isdisjoint(_NESTS))})
    journal = Journal(kinds, times, steps, values, lines)
    for index in others:
        _place(journal, read_event(objects[index], index))
    journal.times = _all_numbers(times, of=_time)
    journal.values = _all_numbers(values, of=number)
    journal.steps, journal.top_step = _all_integers(steps)
    if journal.events:
        journal.points = _points(journal, last_step)
    return journal


def unreadable(line: bytes, error: Exception) -> Journal:
    """Make a malformed one of a single line that could not be read: nothing but its bytes is kept."""
    fields = _malformed(f"cannot be read: {type(error).__name__}: {error}")
    return Journal(
        [MALFORMED], [None], [None], [None], [_text_or_bytes(line)], [Event(0, MALFORMED, None, None, fields)]
    )


def read_event(found: object, index: int = 0) -> Event:
    """Say what one parsed line means, under the present names, whichever dialect it is written in."""
    fields = _tidy(found)
    kind = fields["event"]
    if not kind.isascii():
        kind = kind.encode("utf-8", "replace").decode()
    return Event(index, kind, _time(fields.get("ts")), _integer(fields.get("step")), fields)


def _place(journal: Journal, event: Event) -> None:
    """Put what an event says into the columns; only what is not a plain step is kept beside them."""
    index = event.place
    journal.kinds[index] = event.kind
    journal.times[index] = event.ts
    journal.steps[index] = event.step
    fields = event.fields
    journal.values[index] = number(fields.get("return" if event.kind == "episode" else "reward"))
    if event.kind != "step":
        journal.events.append(event)


def _points(journal: Journal, last_step: int) -> list[Point]:
    """Values of series: scalars, and return and length of episodes; one without a step takes the one before it."""
    points: list[Point] = []
    steps = journal.steps
    journal.steps = steps.copy()  # with those taken from others: a later attempt may have played them anew
    seen = 0
    for event in journal.events:
        index, kind, ts, step, fields = event
        if kind not in {"episode", "scalars"}:
            continue
        if step is None:
            last_step = next((each for each in reversed(steps[seen:index]) if each is not None), last_step)
            step = last_step or _integer(fields.get("episode")) or 0
        else:
            last_step = step
        seen = index
        journal.steps[index] = step
        if kind == "episode":
            points.append(Point("episode_return", index, step, journal.values[index], ts))
            if (length := number(fields.get("length"))) is not None:
                points.append(Point("episode_length", index, step, length, ts))
        elif isinstance(values := fields.get("values"), dict):
            points += [Point(_clean(name), index, step, number(value), ts) for name, value in values.items()]
    return points


# ── bytes to objects ────────────────────────────────────────────────────────────────────────────────


def _split(data: bytes) -> list[str | bytes]:
    """Cut into lines: text where it is UTF-8, bytes where it is not."""
    lines: list[str | bytes]
    try:
        lines = data.decode().split("\n")  # type: ignore[assignment]
    except UnicodeDecodeError:
        lines = [_text_or_bytes(line) for line in data.split(b"\n")]
    lines.pop()  # what follows the last newline: nothing
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
    except ValueError as error:
        reason = str(error)
    try:
        return json.loads(line.decode())  # knows NaN and Infinity
    except UnicodeDecodeError:
        return _malformed("not UTF-8")
    except RecursionError:
        return _malformed("nested too deeply")
    except ValueError:
        return _malformed(f"not JSON: {reason}" if line.strip() else "empty line")


def _malformed(reason: str) -> dict[str, Any]:
    return {"event": MALFORMED, "reason": reason}


# ── dialects ────────────────────────────────────────────────────────────────────────────────────────


def _tidy(found: object) -> dict[str, Any]:
    """Bring an object of any dialect under the present names; what names no event becomes a malformed one."""
    if type(found) is not dict:
        return _malformed(f"not an object but {type(found).__name__}")
    if not _OLD_KEYS.isdisjoint(found) or type(found.get("event")) is not str:
        found = _modernise(found)
    if type(found.get("event")) is not str:
        return _malformed("names no event")
    return found


def _modernise(old: dict[str, Any]) -> dict[str, Any]:
    """Lift the fields of `payload` and `data` to the top and give old names their present ones."""
    fields = dict(old)
    for nest in _NESTS:
        if isinstance(inner := fields.get(nest), dict):
            fields = {**inner, **fields}
    for name, others in _OLD_NAMES.items():
        if fields.get(name) is None:
            for other in others:
                if fields.get(other) is not None:
                    fields[name] = fields[other]
                    break
    return fields


# ── values of any type to what a column holds ───────────────────────────────────────────────────────


def _all_numbers(column: list[Any], of: Callable[[object], float | None]) -> list[float | None]:
    """Clean a column only if something in it needs cleaning."""
    types = set(map(type, column))
    if types <= {float, _NOTHING}:
        return column
    if types <= _NUMBERS and all(_LOW <= each <= _HIGH for each in column if type(each) is int):
        return column
    return [of(each) for each in column]


def _all_integers(column: list[Any]) -> tuple[list[int | None], int | None]:
    """Clean a column of integers if need be; also return the largest."""
    present = [each for each in column if each is not None] if None in column else column
    if not present:
        return column, None
    if {int}.issuperset(map(type, present)) and min(present) >= _LOW and (top := max(present)) <= _HIGH:
        return column, top
    clean = [_integer(each) for each in column]
    return clean, max((each for each in clean if each is not None), default=None)


def number(value: object) -> float | None:
    """A number, or the name of one that JSON lacks; anything else is none."""
    if type(value) is float:
        return value
    if isinstance(value, int):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if type(value) is str and len(value) < _NUMBER_CHARACTERS:
        try:
            return float(value)
        except ValueError:
            return None
    return None


def _integer(value: object) -> int | None:
    if type(value) is str and len(value) < _NUMBER_CHARACTERS:
        value = number(value)
    if type(value) is float and math.isfinite(value):
        value = int(value)
    return value if type(value) is int and _LOW <= value <= _HIGH else None


def _time(value: object) -> float | None:
    """Seconds since 1970, from a number or ISO 8601; a time without a zone is taken as UTC."""
    if type(value) is str:
        try:
            moment = datetime.fromisoformat(value)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            pass
    return number(value)


def text(value: object) -> str:
    """A string or a number as text, cut when it is long; of anything else the type's name, since it may be huge."""
    if value is None:
        return ""
    shown = str(value) if isinstance(value, (str, int, float)) else type(value).__name__
    return _clean(shown[:_TEXT_CHARACTERS])


def _clean(name: str) -> str:
    """A name without lone surrogates, which SQLite cannot hold."""
    return name if name.isascii() else name.encode("utf-8", "replace").decode()
