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


def decide(plan: Mapping[str, Any], wanted: Mapping[str, int], records: Records) -> Decision:  # noqa: ARG001
    """Look at complete episodes and decide (until the statistics are there: play up to the cap)."""
    cap = plan["until"]["cap"]
    further = {lineup: min(2 * count, cap) for lineup, count in wanted.items() if count < cap}
    return Decision("", further)
