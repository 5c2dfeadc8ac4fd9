"""Values and names in messages to people."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["near_names", "shown"]

_LONGEST_SHOWN = 200


def shown(value: object) -> str:
    """Write a value for people. Its sender chose it: it may be huge, or nested too deep for `repr`."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):
        text = f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def near_names(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """Names that look like a mistyped one, the likeliest first."""
    return difflib.get_close_matches(name, sorted(set(known)), n=most)
