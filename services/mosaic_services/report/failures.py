"""Failures of policies, counted by operator, kind and consequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mosaic_services.statistics.episodes import Play

__all__ = ["Failure", "count_failures"]


@dataclass
class Failure:
    """Failures of the same kind, and the first of them."""

    lineup: str
    operator: str
    kind: str
    then: str
    count: int
    episode: int
    message: str


def count_failures(plays: Mapping[str, Play]) -> list[Failure]:
    """Count the failures of all episodes, the most frequent first."""
    found: dict[tuple[str, str, str, str], Failure] = {}
    for name, play in plays.items():
        for record in play.records:
            for each in record.get("failures") or ():
                operator, kind, then = (str(each.get(field) or "") for field in ("operator", "kind", "then"))
                first = Failure(name, operator, kind, then, 0, record["episode"], str(each.get("message") or ""))
                found.setdefault((name, operator, kind, then), first).count += 1
    return sorted(found.values(), key=lambda failure: -failure.count)
