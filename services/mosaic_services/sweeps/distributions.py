"""Distributions for `random:` of a sweep: uniform, loguniform, int and choice."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from mosaic_bus.wording import did_you_mean
from mosaic_services.specs import SpecError

if TYPE_CHECKING:
    import random

__all__ = ["Choice", "Distribution", "Range", "identity", "read_distribution", "refuse_twins"]

_EXAMPLES = {
    "uniform": "{uniform: [0.9, 0.999]}",
    "loguniform": "{loguniform: [0.0001, 0.01]}",
    "int": "{int: [1, 8]}",
    "choice": "{choice: [relu, tanh]}",
}
_BOUNDS = 2
_DIGITS = 6


@dataclass(frozen=True)
class Range:
    """Numbers from low to high, inclusive."""

    kind: Literal["uniform", "loguniform", "int"]
    low: float
    high: float

    @property
    def size(self) -> float:
        """Number of distinct values."""
        if self.low == self.high:
            return 1
        return self.high - self.low + 1 if self.kind == "int" else math.inf

    def draw(self, source: random.Random) -> float:
        """Draw a value; a continuous one is rounded to a readable number of digits."""
        match self.kind:
            case "int":
                return source.randint(int(self.low), int(self.high))
            case "loguniform":
                value = math.exp(source.uniform(math.log(self.low), math.log(self.high)))
            case "uniform":
                value = source.uniform(self.low, self.high)
        return min(max(float(f"{value:.{_DIGITS}g}"), self.low), self.high)


@dataclass(frozen=True)
class Choice:
    """One of several values with equal probability."""

    values: tuple[Any, ...]

    @property
    def size(self) -> float:
        """Number of distinct values."""
        return len(self.values)

    def draw(self, source: random.Random) -> Any:
        """Draw a value."""
        return source.choice(self.values)


Distribution = Range | Choice


def read_distribution(value: object, where: str) -> Distribution:
    """Parse `{loguniform: [0.0001, 0.01]}`; `where` names file and key in errors."""
    if not isinstance(value, dict) or len(value) != 1:
        raise SpecError(f"{where}: {shown(value)} is not a distribution", f"for example: {_EXAMPLES['loguniform']}")
    (kind, given), *_ = value.items()
    if kind not in _EXAMPLES:
        raise SpecError(
            f"{where}: distribution {kind!r} is unknown",
            did_you_mean(kind, _EXAMPLES) or f"one of: {', '.join(_EXAMPLES)}",
        )
    if kind == "choice":
        if not isinstance(given, list) or not given:
            raise SpecError(f"{where}: choice: {shown(given)} is not a list of values", f"write {_EXAMPLES[kind]}")
        refuse_twins(given, f"{where}: choice")
        return Choice(tuple(given))
    return _read_range(kind, given, where)


def _read_range(kind: Any, given: object, where: str) -> Range:
    numbers = isinstance(given, list) and len(given) == _BOUNDS and all(_is_number(each, kind) for each in given)
    if not isinstance(given, list) or not numbers:
        which = "whole numbers" if kind == "int" else "numbers"
        raise SpecError(f"{where}: {kind}: {shown(given)} is not [low, high], two {which}", f"write {_EXAMPLES[kind]}")
    low, high = given
    if low > high:
        raise SpecError(f"{where}: {kind}: low {low} is above high {high}", f"write {{{kind}: [{high}, {low}]}}")
    if kind == "loguniform" and low <= 0:
        raise SpecError(f"{where}: loguniform: low {low} is not above 0", "use uniform, or a small positive number")
    return Range(kind, low, high)


def _is_number(value: object, kind: str) -> bool:
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (kind != "int" and isinstance(value, float) and math.isfinite(value))


def refuse_twins(values: list[Any], where: str) -> None:
    """Refuse duplicate values: they would make equal runs."""
    seen: set[str] = set()
    for value in values:
        if (mark := identity(value)) in seen:
            raise SpecError(f"{where}: {shown(value)} is given twice", "each value once; to repeat runs use seeds:")
        seen.add(mark)


def identity(value: object) -> str:
    """Text that identifies a value: equal for 1 and 1.0, different for 1 and true."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, sort_keys=True, default=str)


def shown(value: object) -> str:
    """A value as written in a file, shortened if long."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}…"  # noqa: PLR2004 - what fits a line
