"""Amounts, lists and lengths of time in the words that people read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mosaic_bus.messages import RunStateName

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["amounts", "cpus_text", "duration", "gpus_text", "listed", "number", "said_of"]

_NAMED = 4


class Amounts(Protocol):
    """Anything that says how much of each resource."""

    @property
    def cpus(self) -> float: ...
    @property
    def memory_mb(self) -> int: ...
    @property
    def gpus(self) -> float: ...


def amounts(resources: Amounts) -> str:
    """Say what a run needs or a host has: `2 cpus and 1024 MB`, `1 cpu, 1024 MB and 0.5 GPU`."""
    cpus, memory = cpus_text(resources.cpus), f"{resources.memory_mb} MB"
    return f"{cpus}, {memory} and {gpus_text(resources.gpus)}" if resources.gpus else f"{cpus} and {memory}"


def cpus_text(value: float) -> str:
    """Write `1 cpu`, `2 cpus`."""
    return f"{number(value)} cpu{'' if value == 1 else 's'}"


def gpus_text(value: float) -> str:
    """Write `0.5 GPU`, `2 GPUs`."""
    return f"{number(value)} GPU{'s' if value > 1 else ''}"


_ENDS = {
    RunStateName.SUCCEEDED: "has succeeded",
    RunStateName.FAILED: "has failed",
    RunStateName.CANCELLED: "was cancelled",
    RunStateName.LOST: "was lost",
}


def said_of(state: RunStateName) -> str:
    """Write what is said of a run in this state: `is running`, `has failed`."""
    return _ENDS.get(state, f"is {state}")


def number(value: float) -> str:
    """Write a number without needless digits."""
    return f"{round(value, 2):g}"


def listed(texts: Sequence[str], most: int = _NAMED) -> str:
    """Write the first few of a list, and how many more there are."""
    more = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {more} more" if more > 0 else "")


def duration(seconds: float) -> str:
    """Write a length of time as `00:02:11`."""
    whole = max(0, int(seconds))
    return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}"
