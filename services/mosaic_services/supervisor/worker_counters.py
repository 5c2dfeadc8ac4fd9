"""Counters that the workers of a host keep together, such as the calls to an endpoint: for `mosaic stats`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["worker_counters"]

_FOLDER = "counters"
# Workers write these files, so neither their number nor their size is trusted.
_MOST_FILES = 64
_MOST_BYTES = 4096
_MOST_COUNTERS = 16


def worker_counters(shared: Path) -> dict[str, int | float]:
    """Read `shared/counters/*.json`; each file holds numbers by name, and its own name comes before theirs."""
    found: dict[str, int | float] = {}
    for path in sorted((shared / _FOLDER).glob("*.json"))[:_MOST_FILES]:
        try:
            with path.open("rb") as file:
                counters = json.loads(file.read(_MOST_BYTES))
        except (OSError, ValueError):
            continue  # it is being replaced
        if isinstance(counters, dict):
            numbers = [(name, value) for name, value in counters.items() if type(value) in {int, float}]
            found |= {f"{path.stem}.{name}": value for name, value in numbers[:_MOST_COUNTERS]}
    return found
