"""Counts the episodes of a run and their returns, for the team and for each agent. Pure."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from mosaic_bus.messages import AgentSummary
from mosaic_services.telemetry.columns import TEAM

__all__ = ["AGENTS", "CURVE_POINTS", "Curve", "Returns", "Tally"]

RECENT_EPISODES = 100
CURVE_POINTS = 40
AGENTS = 32
"""Agents per summary. More are stored, but would make every message large."""
_HUGE = 1e300


@dataclass(slots=True)
class Curve:
    """The returns of a whole run in a few points: each is the mean of `stride` episodes, and the stride doubles."""

    points: list[float] = field(default_factory=list)
    stride: int = 1
    gathered: int = 0
    total: float = 0.0

    def add(self, value: float) -> None:
        """Take one more return."""
        self.gathered += 1
        self.total = max(-_HUGE, min(self.total + value, _HUGE))
        if self.gathered < self.stride:
            return
        self.points.append(self.total / self.gathered)
        self.gathered, self.total = 0, 0.0
        if len(self.points) > CURVE_POINTS:
            if len(self.points) % 2:  # the odd one waits for its partner
                self.total, self.gathered = self.points.pop() * self.stride, self.stride
            pairs = zip(self.points[::2], self.points[1::2], strict=True)
            self.points = [(first + second) / 2 for first, second in pairs]
            self.stride *= 2


@dataclass(slots=True)
class Returns:
    """How many episodes there were, and the returns of the last ones; NaN where one is not a finite number."""

    episodes: int = 0
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_EPISODES))

    def add(self, value: float | None) -> None:
        """Take one more episode."""
        self.episodes += 1
        self.recent.append(_finite(value))

    @property
    def last(self) -> float | None:
        """The return of the last episode; None if it is not a finite number."""
        return self.recent[-1] if self.recent and not math.isnan(self.recent[-1]) else None

    def mean_and_spread(self) -> tuple[float | None, float | None]:
        """Mean and standard deviation of the last episodes; `statistics.pstdev` is exact and a hundred times slower."""
        known = [each for each in self.recent if each == each]  # noqa: PLR0124 - NaN is not equal to itself
        if not known:
            return None, None
        mean = sum(known) / len(known)
        if not math.isfinite(mean):
            return None, None
        spread = math.sqrt(sum((each - mean) * (each - mean) for each in known) / len(known))
        return mean, spread if math.isfinite(spread) else None

    def copy(self) -> Returns:
        """Return an independent copy."""
        return Returns(self.episodes, self.recent.copy())

    def dump(self) -> dict[str, Any]:
        """Return the state; `orjson` writes NaN as null."""
        return {"episodes": self.episodes, "recent": list(self.recent)}

    @classmethod
    def load(cls, state: dict[str, Any]) -> Returns:
        """Read what `dump` returned."""
        recent = (math.nan if each is None else each for each in state["recent"])
        return cls(state["episodes"], deque(recent, maxlen=RECENT_EPISODES))


@dataclass(slots=True)
class Tally:
    """The episodes of a run so far.

    An episode of the team is an event without an agent. In a journal that has none, it is the sum over agents of the
    events that share an episode number.
    """

    team: Returns = field(default_factory=Returns)
    curve: Curve = field(default_factory=Curve)
    agents: dict[str, Returns] = field(default_factory=dict)
    # Recent episodes that only agents have reported: episode number → how many episodes were counted with it.
    opened: dict[int, int] = field(default_factory=dict)
    has_team: bool = False

    def add(self, agent: str, episode: int | None, value: float | None) -> None:
        """Take one more episode, of the team or of one agent."""
        if agent == TEAM:
            if not self.has_team and self.opened:  # the sums so far stood in for events like this one
                self.team, self.curve, self.opened = Returns(), Curve(), {}
            self.has_team = True
            self.team.add(value)
            self._draw_last()
            return
        if (returns := self.agents.get(agent)) is None and len(self.agents) < AGENTS:
            returns = self.agents[agent] = Returns()
        if returns is not None:
            returns.add(value)
        if not self.has_team:
            self._add_to_sum(episode, value)

    def _draw_last(self) -> None:
        if (last := self.team.last) is not None:
            self.curve.add(last)

    def _add_to_sum(self, episode: int | None, value: float | None) -> None:
        counted = None if episode is None else self.opened.get(episode)
        if counted is None:
            self._draw_last()  # the episode before is probably complete
            self.team.add(value)
            self.opened[-self.team.episodes if episode is None else episode] = self.team.episodes
            if len(self.opened) > RECENT_EPISODES:
                del self.opened[next(iter(self.opened))]
            return
        place = counted - self.team.episodes - 1  # from the end
        self.team.recent[place] = _finite(self.team.recent[place] + _finite(value))

    def copy(self) -> Tally:
        """Return an independent copy."""
        curve = Curve(self.curve.points.copy(), self.curve.stride, self.curve.gathered, self.curve.total)
        agents = {name: each.copy() for name, each in self.agents.items()}
        return Tally(self.team.copy(), curve, agents, self.opened.copy(), self.has_team)

    def by_agent(self) -> dict[str, AgentSummary]:
        """Sum up the returns of each agent."""
        return {
            name: AgentSummary(episodes=each.episodes, return_last=each.last, return_mean=each.mean_and_spread()[0])
            for name, each in self.agents.items()
        }

    def dump(self) -> dict[str, Any]:
        """Return the state as what JSON can hold."""
        return {
            "team": self.team.dump(),
            "curve": {name: getattr(self.curve, name) for name in self.curve.__slots__},
            "agents": {name: each.dump() for name, each in self.agents.items()},
            "opened": list(self.opened.items()),
            "has_team": self.has_team,
        }

    @classmethod
    def load(cls, state: dict[str, Any]) -> Tally:
        """Read what `dump` returned."""
        return cls(
            Returns.load(state["team"]),
            Curve(**state["curve"]),
            {name: Returns.load(each) for name, each in state["agents"].items()},
            dict(state["opened"]),
            state["has_team"],
        )


def _finite(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else math.nan
