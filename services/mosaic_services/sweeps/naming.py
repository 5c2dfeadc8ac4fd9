"""Short, unique, readable names for the runs of a sweep: `lr-search-lr0.001-seed3`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["labels", "name_runs"]

_LONGEST = 60
_LONGEST_VALUE = 20


def labels(paths: Iterable[str]) -> dict[str, str]:
    """The shortest unambiguous suffix of each dotted path."""
    known = list(paths)
    found = {}
    for path in known:
        parts = path.removeprefix("config.").split(".")
        found[path] = next(
            tail
            for tail in (".".join(parts[-count:]) for count in range(1, len(parts) + 2))
            if tail == ".".join(parts) or not any(o != path and f".{o}".endswith(f".{tail}") for o in known)
        )
    return found


def name_runs(sweep: str, chosen: list[dict[str, Any]]) -> list[str]:
    """Name each run after the sweep and its values."""
    short = labels({path: None for values in chosen for path in values})
    taken: dict[str, int] = {}
    names = []
    for values in chosen:
        parts = [sweep, *(_part(short[path], value) for path, value in values.items())]
        name = "-".join(part for part in parts if part)
        if len(name) > _LONGEST:
            name = name[: _LONGEST - 6].rstrip("-.")
        taken[name] = count = taken.get(name, 0) + 1
        names.append(name if count == 1 else f"{name}-{count}")
    # A name that was made unique may clash with another.
    if len(set(names)) < len(names):
        names = [f"{sweep}-{number}" for number in range(1, len(chosen) + 1)]
    return names


def _part(label: str, value: object) -> str:
    match value:
        case bool():
            return label if value else f"no-{label}"
        case int() | float():
            return f"{label}{value:.6g}" if isinstance(value, float) else f"{label}{value}"
        case str():
            return _slug(value) or label
        case list() | tuple():
            return label + "x".join(_slug(str(each)) for each in value)[:_LONGEST_VALUE]
        case _:
            return label


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", text)[:_LONGEST_VALUE].strip("-.")
