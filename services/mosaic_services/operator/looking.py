"""The looks of a stopping rule: whether to go on, and which lineups with. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mosaic_services.experiments.records import Records

__all__ = ["Decision", "decide"]


@dataclass(frozen=True, slots=True)
class Decision:
    """What a look decided; `wanted` is empty if the experiment is over."""

    reason: str
    wanted: dict[str, int]


def decide(plan: Mapping[str, Any], wanted: Mapping[str, int], records: Records) -> Decision:
    """Apply the rule to the episodes that are complete. Only lineups of this start are looked at."""
    from mosaic_services.statistics import episodes  # noqa: PLC0415 - numpy, which most experiments do not need here
    from mosaic_services.statistics.stopping import Rule  # noqa: PLC0415 - as above

    lineups = {each["name"]: each["agents"] for each in plan["lineups"] if each["name"] in wanted}
    # Episodes beyond the number that was wanted were played for an earlier start: the rule must not see them.
    looked_at = [record for record in records.kept or [] if record["episode"] < wanted.get(record["lineup"], 0)]
    decision = episodes.decide(looked_at, lineups, Rule(**plan["until"]))
    return Decision(decision.words, {} if decision.stop else dict(decision.play))
