"""What language models did and cost, summed over the reports in the records of their episodes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mosaic_services.statistics.episodes import Play

__all__ = ["ModelUse", "count_use"]


@dataclass
class ModelUse:
    """One operator in one lineup."""

    lineup: str
    operator: str
    models: set[str] = field(default_factory=set)
    episodes: int = 0
    answers: int = 0
    invalid: int = 0
    refusals: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    seconds: float = 0.0
    usd: float | None = 0.0
    """None if one of its models has no price."""
    points: float = 0.0
    """Sum of the returns of its agents."""

    @property
    def invalid_rate(self) -> float:
        """Share of answers that were no legal action."""
        return self.invalid / self.answers if self.answers else 0.0

    @property
    def usd_per_episode(self) -> float | None:
        """Mean cost of an episode."""
        return None if self.usd is None or not self.episodes else self.usd / self.episodes

    @property
    def usd_per_point(self) -> float | None:
        """Cost of a point of return; None if there are none."""
        return None if self.usd is None or self.points <= 0 else self.usd / self.points


def count_use(plays: Mapping[str, Play]) -> list[ModelUse]:
    """Sum up the reports of language models, by lineup and operator."""
    found: dict[tuple[str, str], ModelUse] = {}
    for name, play in plays.items():
        for record in play.records:
            seen = set()
            for agent, report in (record.get("reports") or {}).items():
                if not isinstance(report, dict) or "answers" not in report:
                    continue  # of an operator that is no language model
                operator = play.lineup.operator_of(agent)
                use = found.setdefault((name, operator), ModelUse(name, operator))
                if operator not in seen:
                    seen.add(operator)
                    use.episodes += 1
                _add(use, report, float((record.get("returns") or {}).get(agent) or 0.0))
    return list(found.values())


def _add(use: ModelUse, report: Mapping[str, Any], points: float) -> None:
    for name in ("answers", "invalid", "refusals", "tokens_in", "tokens_out"):
        setattr(use, name, getattr(use, name) + int(report.get(name) or 0))
    use.seconds += float(report.get("latency_s") or 0.0)
    use.models.add(str(report.get("model") or ""))
    cost = report.get("cost_usd")
    use.usd = None if use.usd is None or cost is None else use.usd + float(cost)
    use.points += points
