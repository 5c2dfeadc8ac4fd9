"""Progress of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mosaic_bus.messages import RunSummary

__all__ = ["fraction"]


def fraction(summary: RunSummary) -> float | None:
    """Return the completed share, 0 to 1, by steps or else by episodes; None if the length is unknown."""
    if summary.total_steps:
        return min(1.0, summary.step / summary.total_steps)
    if summary.total_episodes:
        return min(1.0, summary.episodes / summary.total_episodes)
    return None
