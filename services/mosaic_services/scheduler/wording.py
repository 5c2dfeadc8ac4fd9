"""Writes amounts, lists and states for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from mosaic_bus.messages import RunStateName

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["amounts", "cpus_text", "gpus_text", "listed", "number", "said_of"]

_NAMED = 4


class Amounts(Protocol):
    """An amount of each resource."""

    @property
    def cpus(self) -> float: ...
    @property
    def memory_mb(self) -> int: ...
    @property
    def gpus(self) -> float: ...


def amounts(resources: Amounts) -> str:
    """Write an amount of resources: `2 cpus and 1024 MB`, `1 cpu, 1024 MB and 0.5 GPU`."""
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
    """Write a predicate for a run in this state: `is running`, `has failed`."""
    return _ENDS.get(state, f"is {state}")


def number(value: float) -> str:
    """Write a number with at most two decimals."""
    return f"{round(value, 2):g}"


def listed(texts: Sequence[str], most: int = _NAMED) -> str:
    """Write the first entries of a list, and the number of the rest."""
    more = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {more} more" if more > 0 else "")
