"""Reads lines of a journal as events. No line makes a reader raise: what is no event becomes a `malformed` one."""

import json
from typing import Any, NamedTuple

from mosaic_worker.events import values
from mosaic_worker.events.vocabulary import (
    FORMER_KEYS,
    FORMER_LENGTH,
    FORMER_NAMES,
    FORMER_NANOSECONDS,
    NESTS,
    TERMINAL_EVENTS,
    Kind,
)

__all__ = ["Event", "load_line", "malformed", "read_event", "read_line", "tidy"]


class Event(NamedTuple):
    """One event: what every event has, and its fields under the present names, of whatever type they are."""

    kind: str
    ts: float | None
    step: int | None
    fields: dict[str, Any]

    @property
    def is_terminal(self) -> bool:
        """Whether it ends its journal."""
        return self.kind in TERMINAL_EVENTS

    @property
    def agent(self) -> str | None:
        """The agent that it is about; None if it is about the whole team, or the only agent."""
        return values.name(self.fields.get("agent"))

    @property
    def value(self) -> float | None:
        """The reward of a step; the return of an episode, which is the sum over agents where only those are given."""
        if self.kind != "episode":
            return values.number(self.fields.get("reward"))
        value = values.number(self.fields.get("return"))
        if value is None and (returns := self.returns):
            return float(sum(each for each in returns.values() if each is not None))
        return value

    @property
    def returns(self) -> dict[str, float | None]:
        """The return of each agent, of an episode that gives them all in one line."""
        found = self.fields.get("returns")
        if not isinstance(found, dict):
            return {}
        return {agent: values.number(value) for key, value in found.items() if (agent := values.name(key)) is not None}

    @property
    def scalars(self) -> dict[str, float | None]:
        """The named numbers of a `scalars` event; None where a value is not a number."""
        found = self.fields.get("values")
        if not isinstance(found, dict):
            return {}
        return {values.text(key): values.number(value) for key, value in found.items()}

    @property
    def path(self) -> str | None:
        """The file that a checkpoint or an artifact is in, relative to the attempt's folder or absolute."""
        found = self.fields.get("path")
        return found if type(found) is str and found else None

    def integer(self, field: str) -> int | None:
        """Read a field as an integer of 64 bits."""
        return values.integer(self.fields.get(field))

    def number(self, field: str) -> float | None:
        """Read a field as a number."""
        return values.number(self.fields.get(field))

    def text(self, field: str) -> str:
        """Read a field as text of bounded length; empty if it is missing."""
        return values.text(self.fields.get(field))


def read_line(line: bytes | str) -> Event:
    """Read one line of a journal."""
    return read_event(load_line(line))


def load_line(line: bytes | str) -> Any:
    """Parse one line; accepts the bare NaN and Infinity of Python's `json`."""
    try:
        return json.loads(line.decode() if isinstance(line, bytes) else line)
    except UnicodeDecodeError:
        return malformed("not UTF-8")
    except RecursionError:
        return malformed("nested too deeply")
    except ValueError as error:
        return malformed(f"not JSON: {error}" if line.strip() else "empty line")


def read_event(found: object) -> Event:
    """Say what a parsed line means, whichever dialect it is written in."""
    fields = tidy(found)
    kind = values.clean(fields["event"])
    return Event(kind, values.time(fields.get("ts")), values.integer(fields.get("step")), fields)


def malformed(reason: str) -> dict[str, Any]:
    """Make the fields of the `malformed` event for an unreadable line."""
    return {"event": Kind.MALFORMED.value, "reason": reason}


def tidy(found: object) -> dict[str, Any]:
    """Bring the fields of a line of any dialect under the present names."""
    if type(found) is not dict:
        return malformed(f"not an object but {type(found).__name__}")
    if not FORMER_KEYS.isdisjoint(found) or type(found.get("event")) is not str:
        found = _modernise(found)
    if type(found.get("event")) is not str:
        return malformed("names no event")
    return found


def _modernise(old: dict[str, Any]) -> dict[str, Any]:
    """Lift nested fields to the top, and give former names their present ones."""
    fields = dict(old)
    for nest in NESTS:
        if isinstance(inner := fields.get(nest), dict):
            fields = {**inner, **fields}
    for present, formers in FORMER_NAMES.items():
        if fields.get(present) is None:
            for former in formers:
                if fields.get(former) is not None:
                    fields[present] = fields[former]
                    break
    if fields.get("length") is None and fields.get("event") == Kind.EPISODE and FORMER_LENGTH in fields:
        fields["length"] = fields[FORMER_LENGTH]
    if fields.get("ts") is None and (nanoseconds := values.integer(fields.get(FORMER_NANOSECONDS))) is not None:
        fields["ts"] = nanoseconds / 10**9
    return fields
