"""Episode records as arrays: the scores of each lineup, and the points of each operator where operators compete."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mosaic_services.statistics.stopping import Claim, comparisons, look, means

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import numpy.typing as npt

    from mosaic_services.statistics.stopping import Decision, Rule

    Array = npt.NDArray[np.float64]

__all__ = ["Lineup", "Play", "claims", "decide", "read_play"]

_ALL = "*"


@dataclass(frozen=True)
class Lineup:
    """Which operator plays which agent; `{"*": operator}` is one operator for all."""

    name: str
    agents: Mapping[str, str]

    @property
    def operators(self) -> list[str]:
        """Its operators, each once, in the order of their agents."""
        return list(dict.fromkeys(self.agents.values()))

    def operator_of(self, agent: str) -> str:
        """The operator that plays an agent."""
        return self.agents[agent] if agent in self.agents else self.agents[_ALL]


@dataclass
class Play:
    """The episodes of one lineup, by rising number; arrays are parallel to `scored`."""

    lineup: Lineup
    records: list[Mapping[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Sort, and take the scores out of the records."""
        self.records.sort(key=lambda record: int(record["episode"]))
        # A policy that refused the game has no returns.
        self.scored = [each for each in self.records if each["returns"] and None not in each["returns"].values()]
        operators = self.lineup.operators
        self.competitive = len(operators) > 1 and any(each.get("winners") is not None for each in self.scored)
        """Whether its operators play against each other."""
        self.episodes = np.array([record["episode"] for record in self.scored], dtype=np.int64)
        self.totals = np.array([sum(record["returns"].values()) for record in self.scored], dtype=np.float64)
        """Sum of the returns of all agents."""
        self.points: Array = np.zeros(0)
        """In a duel, the points of the first operator: 1 for a win, 0 for a loss, one half for a draw."""
        if self.competitive and len(operators) == 2:  # noqa: PLR2004 - a duel
            self.points = np.array([_points(record, self.lineup) for record in self.scored])

    @property
    def unscored(self) -> int:
        """How many records have no score."""
        return len(self.records) - len(self.scored)

    def returns_of(self, operator: str) -> Array:
        """Sum of the returns of the agents that an operator plays."""
        return np.array(
            [
                sum(value for agent, value in record["returns"].items() if self.lineup.operator_of(agent) == operator)
                for record in self.scored
            ],
            dtype=np.float64,
        )

    @property
    def scores(self) -> Array:
        """One number per episode: the total return; in a duel the points of the first operator, less one half."""
        return self.points - 0.5 if len(self.points) else self.totals

    @property
    def complete(self) -> int:
        """How many episodes there are without a gap, from number 0."""
        count = len(self.episodes)
        gaps = np.flatnonzero(self.episodes != np.arange(count))
        return int(gaps[0]) if len(gaps) else count


def read_play(records: Iterable[Mapping[str, Any]], lineups: Mapping[str, Mapping[str, str]]) -> dict[str, Play]:
    """Sort records into the lineups of an experiment; raise `KeyError` for a record of another lineup."""
    sorted_: dict[str, list[Mapping[str, Any]]] = {name: [] for name in lineups}
    for record in records:
        sorted_[record["lineup"]].append(record)
    return {name: Play(Lineup(name, lineups[name]), found) for name, found in sorted_.items()}


def decide(records: Iterable[Mapping[str, Any]], lineups: Mapping[str, Mapping[str, str]], rule: Rule) -> Decision:
    """Apply the stopping rule to the records of an experiment, as far as they are complete from episode 0.

    A lineup with an operator that refused the game is left out: no number of episodes would settle anything.
    """
    plays = {name: play for name, play in read_play(records, lineups).items() if not play.unscored}
    competitive = any(play.competitive for play in plays.values())
    wanted = claims([play.lineup for play in plays.values()], decided=rule.decided, competitive=competitive)
    return look({name: play.scores[: play.complete] for name, play in plays.items()}, wanted, rule)


def claims(lineups: Sequence[Lineup], *, decided: bool, competitive: bool) -> list[Claim]:
    """What the stopping rule has to settle.

    Where operators compete, that is each pair of operators, over all lineups in which they meet (both sides); otherwise
    the difference of each two lineups (`decided`), or the mean of each (`width`).
    """
    duels = [each for each in lineups if len(each.operators) == 2] if competitive else []  # noqa: PLR2004 - a duel
    if not duels:
        names = [each.name for each in lineups]
        return comparisons(names) if decided else means(names)
    met: dict[frozenset[str], list[Lineup]] = {}
    for each in duels:
        met.setdefault(frozenset(each.operators), []).append(each)
    found = []
    for lineups_of_pair in met.values():
        first, second = lineups_of_pair[0].operators
        share = 1 / len(lineups_of_pair)
        weights = {each.name: share if each.operators[0] == first else -share for each in lineups_of_pair}
        found.append(Claim(f"{first} - {second}", weights))
    return found


def _points(record: Mapping[str, Any], lineup: Lineup) -> float:
    first, second = lineup.operators
    winners = record.get("winners")
    if winners is not None:
        won = {lineup.operator_of(agent) for agent in winners}
        return 0.5 + 0.5 * ((first in won) - (second in won))
    returns = dict.fromkeys((first, second), 0.0)
    for agent, value in record["returns"].items():
        returns[lineup.operator_of(agent)] += value
    return 0.5 + 0.5 * ((returns[first] > returns[second]) - (returns[first] < returns[second]))
