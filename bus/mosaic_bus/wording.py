"""Values and names in messages to people."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["did_you_mean", "duration", "near_names", "shown"]

_LONGEST_SHOWN = 200


def shown(value: object) -> str:
    """Write a value for people. Its sender chose it: it may be huge, or nested too deep for `repr`."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):
        text = f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def did_you_mean(name: object, known: Iterable[str], most: int = 2) -> str:
    """Write `did you mean NAME or NAME?`, or nothing if no known name looks like it."""
    near = near_names(str(name), known, most)
    return f"did you mean {' or '.join(near)}?" if near else ""


def near_names(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """Names that look like a mistyped one, the likeliest first."""
    return difflib.get_close_matches(name, sorted(set(known)), n=most)


def duration(seconds: float) -> str:
    """Write `00:02:11`, or `3 d 04:00:00`."""
    days, rest = divmod(max(0, int(seconds)), 86_400)
    text = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days} d {text}" if days else text
