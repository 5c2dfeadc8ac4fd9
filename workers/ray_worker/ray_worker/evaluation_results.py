"""What an evaluation found: dataclasses, and the files `summary.json`, `episodes.csv` and `agents.csv`."""

import csv
import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["AgentMetrics", "EpisodeMetrics", "EvaluationResults"]

_NOTHING = 1e-9


@dataclass(frozen=True)
class EpisodeMetrics:
    """One episode."""

    episode: int
    seed: int
    episode_return: float
    """The mean of the agents' returns."""
    length: int
    returns: Mapping[str, float]
    """By agent."""
    is_truncated: bool
    """Whether it was cut off, by the environment or by `max_steps`."""

    @property
    def winners(self) -> tuple[str, ...]:
        """The agents with the highest return; nobody wins if all have the same."""
        best = max(self.returns.values())
        found = tuple(agent for agent, value in self.returns.items() if value == best)
        return found if len(found) < len(self.returns) else ()


@dataclass(frozen=True)
class AgentMetrics:
    """One agent over all episodes."""

    agent: str
    policy: str
    """The checkpoint that acted, or `random`."""
    episodes: int
    return_mean: float
    return_std: float
    return_min: float
    return_max: float
    wins: int | None = None
    """Of a game whose returns add up to nothing; None for all else."""
    draws: int | None = None


@dataclass(frozen=True)
class EvaluationResults:
    """All episodes of an evaluation."""

    env_id: str
    family: str
    algorithm: str
    checkpoint: str
    trained_steps: int
    seed: int
    deterministic: bool
    policies: Mapping[str, str]
    """Which policy acted for each agent."""
    episodes: Sequence[EpisodeMetrics] = field(default_factory=tuple)
    """In the order of their seeds."""

    @property
    def returns(self) -> list[float]:
        """The return of each episode."""
        return [each.episode_return for each in self.episodes]

    @property
    def is_game(self) -> bool:
        """Whether agents played against each other: what one wins, the others lose."""
        totals = [each.returns for each in self.episodes if len(each.returns) > 1]
        sums_to_nothing = all(abs(sum(each.values())) < _NOTHING for each in totals)
        is_decided = any(any(each.values()) for each in totals)  # a draw in every episode may be a task without rewards
        return bool(totals) and sums_to_nothing and (is_decided or self.family == "classic")

    @property
    def agents(self) -> list[AgentMetrics]:
        """Each agent over all episodes."""
        return [self._agent(name) for name in self.policies if any(name in each.returns for each in self.episodes)]

    def win_rate(self, agent: str) -> float:
        """The share of episodes that an agent won."""
        return sum(each.winners == (agent,) for each in self.episodes) / len(self.episodes)

    def summary(self) -> dict[str, Any]:
        """Figures over all episodes."""
        returns = self.returns
        found: dict[str, Any] = {
            "algorithm": self.algorithm,
            "env_id": self.env_id,
            "checkpoint": self.checkpoint,
            "trained_steps": self.trained_steps,
            "policies": dict(self.policies),
            "deterministic": self.deterministic,
            "seed": self.seed,
            "episodes": len(returns),
            "steps": sum(each.length for each in self.episodes),
            "return_mean": statistics.fmean(returns),
            "return_std": statistics.pstdev(returns),
            "return_min": min(returns),
            "return_max": max(returns),
            "return_median": statistics.median(returns),
            "length_mean": statistics.fmean(each.length for each in self.episodes),
            "truncated": sum(each.is_truncated for each in self.episodes),
        }
        if self.is_game:
            found["win_rates"] = {each.agent: self.win_rate(each.agent) for each in self.agents}
            found["draws"] = sum(not each.winners for each in self.episodes)
        return found

    def save(self, folder: Path) -> list[Path]:
        """Write `summary.json`, `episodes.csv` and `agents.csv`; return their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / name for name in ("summary.json", "episodes.csv", "agents.csv")]
        paths[0].write_text(json.dumps(self.summary(), indent=1) + "\n", encoding="utf-8")
        agents = list(self.policies)
        head = ["episode", "seed", "return", "length", "truncated", "winners", *(f"return_{name}" for name in agents)]
        rows = (
            [
                *(each.episode, each.seed, each.episode_return, each.length, int(each.is_truncated)),
                " ".join(each.winners) if self.is_game else "",
                *(each.returns.get(name, "") for name in agents),
            ]
            for each in self.episodes
        )
        _write(paths[1], head, rows)
        found = [asdict(each) for each in self.agents]
        _write(paths[2], list(found[0]), (each.values() for each in found))
        return paths

    def _agent(self, name: str) -> AgentMetrics:
        returns = [each.returns[name] for each in self.episodes if name in each.returns]
        wins = draws = None
        if self.is_game:
            wins = sum(each.winners == (name,) for each in self.episodes)
            draws = sum(not each.winners for each in self.episodes)
        return AgentMetrics(
            name,
            self.policies[name],
            len(returns),
            statistics.fmean(returns),
            statistics.pstdev(returns),
            min(returns),
            max(returns),
            wins,
            draws,
        )


def _write(path: Path, head: list[str], rows: Iterable[Iterable[Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(rows)
