"""Which records of an exact experiment must have the same fingerprint of numerics. Pure."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mosaic_services.experiments.records import Records

__all__ = ["Numerics"]

# An operator, and of each agent of a lineup whether it plays it; without agents, the environment.
Part = tuple[str, frozenset[tuple[str, bool]]]


class Numerics:
    """Compares fingerprints of the same part.

    The fingerprint of a policy depends on what it is asked about: the observations of the agents that it plays. So it
    is compared among the lineups in which the operator plays the same agents, and the environment's among all.
    """

    def __init__(self, lineups: Iterable[Mapping[str, Any]], records: Records) -> None:
        self._records = records
        self._parts: dict[tuple[str, str], Part] = {}
        self._alike: defaultdict[Part, list[tuple[str, str]]] = defaultdict(list)
        for lineup in lineups:
            for name in set(lineup["agents"].values()):
                seats = frozenset((agent, operator == name) for agent, operator in lineup["agents"].items())
                self._parts[lineup["name"], name] = (name, seats)
                self._alike[name, seats].append((lineup["name"], name))

    def differing(self, record: Mapping[str, Any]) -> list[str]:
        """Return the names whose fingerprint in a record is not the one that is known."""
        prints = record.get("numerics") or {}
        return sorted(name for name, found in prints.items() if self._known(record["lineup"], name) - {str(found)})

    def mixed(self) -> list[str]:
        """Return the names that have several fingerprints in the records of one part."""
        return sorted({name for lineup, name in self._records.prints if len(self._known(lineup, name)) > 1})

    def _known(self, lineup: str, name: str) -> set[str]:
        part = self._parts.get((lineup, name))
        if part is None:
            return self._records.numerics.get(name, set())
        return {each for place in self._alike[part] for each in self._records.prints.get(place, ())}
