"""Numbers as text, with as many decimals as their intervals justify."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mosaic_services.statistics.resampling import Interval

__all__ = ["Decimals", "percent", "probability"]

_MOST = 4
_MINUS = "\u2212"


@dataclass(frozen=True)
class Decimals:
    """One number of decimals for all scores of a report, so that columns align."""

    count: int

    @classmethod
    def of(cls, intervals: Iterable[Interval | None], values: Iterable[float]) -> Decimals:
        """Two digits of the typical half width; without intervals, what the values need."""
        halves = [(each[1] - each[0]) / 2 for each in intervals if each is not None and each[1] > each[0]]
        typical = median(halves) if halves else max((abs(value) for value in values), default=1.0) / 100 or 1.0
        return cls(min(_MOST, max(1, 1 - math.floor(math.log10(typical)))) if math.isfinite(typical) else 1)

    def text(self, value: float | None) -> str:
        """Format a score; empty for None."""
        if value is None:
            return ""
        return f"{value:,.{self.count}f}".replace("-", _MINUS)

    def interval(self, interval: Interval | None) -> str:
        """Format an interval."""
        return f"[{self.text(interval[0])}, {self.text(interval[1])}]" if interval else "none"


def probability(value: float) -> str:
    """Format a probability; 1.00 and 0.00 only if it is exactly that."""
    shown = f"{value:.2f}"
    if shown == "1.00" and value < 1:
        return ">0.99"
    return "<0.01" if shown == "0.00" and value > 0 else shown


def percent(confidence: float) -> str:
    """Format a confidence: `95 %`, `99.3 %`."""
    return f"{100 * confidence:.3g} %"
