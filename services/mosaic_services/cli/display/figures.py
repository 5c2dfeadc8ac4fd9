"""Figures of a run for display: ETA, loss, and those of a frame."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from mosaic_services.cli.display.output import number
from mosaic_services.progress import fraction

if TYPE_CHECKING:
    from mosaic_bus.frames import Frame
    from mosaic_bus.messages import FrameHandle, RunState, RunSummary

__all__ = ["eta_s", "loss", "of_frame"]


def eta_s(state: RunState, summary: RunSummary, now: float) -> float | None:
    """Seconds until the end, from the current speed, or else from the elapsed time."""
    if summary.total_steps and summary.steps_per_s > 0:
        return max(0.0, (summary.total_steps - summary.step) / summary.steps_per_s)
    done = fraction(summary)
    if not done or state.started_at is None:
        return None
    return max(0.0, (now - state.started_at) * (1 - done) / done)


def loss(summary: RunSummary) -> tuple[str, float] | None:
    """A scalar whose name contains "loss", with its name: the policy's loss if there are several."""
    names = [name for name in summary.scalars if "loss" in name.lower()]
    if not names:
        return None
    names.sort(key=lambda name: ("policy" not in name.lower() and "actor" not in name.lower(), name))
    return names[0], summary.scalars[names[0]]


def of_frame(frame: FrameHandle | Frame) -> str:
    """Format the known figures of a frame."""
    parts = [f"step {frame.step:,}", f"episode {frame.episode:,}"]
    named = (
        ("reward", frame.last_reward),
        ("return", frame.rolling_return),
        ("steps/s", frame.step_rate_hz),
    )
    parts += [f"{name} {number(value)}" for name, value in named if value is not None and not math.isnan(value)]
    return "  ".join(parts)
