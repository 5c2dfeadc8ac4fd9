"""What every describer of observations has, and the one for environments that no other knows."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["Describer", "Scene", "number"]

_MOST_NUMBERS = 512
_MOST_BLOCKS = 16
"""Larger arrays are averaged over blocks: so many along each of the first two dimensions."""
_MOST_RULES = 3000
_END_OF_RULES = re.compile(r"^#+\s*(arguments|version|reset arguments|references|usage)", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True)
class Scene:
    """What is known of an environment before the first observation."""

    env_id: str
    agent: str
    agents: Sequence[str] = ()
    doc: str = ""
    observation_space: dict[str, Any] = field(default_factory=dict)
    action_space: dict[str, Any] = field(default_factory=dict)
    meanings: Sequence[str] | None = None
    map: Sequence[str] = ()
    """The rows of letters that toy text environments draw."""

    @property
    def name(self) -> str:
        """The environment's name without its package: `tictactoe_v3` of `pettingzoo.classic.tictactoe_v3`."""
        return self.env_id.rpartition(":")[2].replace("/", ".").rpartition(".")[2]


class Describer:
    """Writes any observation as numbers; the environment's own docstring and its space say what they are."""

    def __init__(self, scene: Scene) -> None:
        """Describe what an agent sees in a scene."""
        self.scene = scene
        self.names: Sequence[str] | None = scene.meanings
        """The names of the actions."""

    @property
    def rules(self) -> str:
        """What the environment is about: its docstring, without what is about Python, and what is observed."""
        doc = self.scene.doc
        end = _END_OF_RULES.search(doc)
        about = (doc[: end.start()] if end else doc).strip()[:_MOST_RULES]
        return f"{about}\n\nEach observation is {_space(self.scene.observation_space)}.".strip()

    def text(self, observation: Any) -> str:
        """Describe an observation."""
        return f"You observe: {_plain(observation)}"


def number(value: Any) -> str:
    """Write a number with as many digits as matter."""
    return f"{float(value):.3g}"


def _space(space: dict[str, Any]) -> str:
    """Describe a space."""
    kind, parts = space.get("type"), space.get("spaces")
    if isinstance(parts, dict):
        return "; ".join(f"{name}: {_space(part)}" for name, part in parts.items())
    if isinstance(parts, list):
        return "; ".join(_space(part) for part in parts)
    if kind == "Discrete":
        first = int(space.get("start", 0))
        return f"a whole number from {first} to {first + int(space['n']) - 1}"
    if kind == "Box":
        return f"{_count(space['shape'])}, from {_bound(space['low'], min)} to {_bound(space['high'], max)}"
    if kind == "MultiDiscrete":
        return f"whole numbers from 0 to below {space['nvec']}"
    if kind == "MultiBinary":
        shape = space["n"]
        return f"{_count(shape if isinstance(shape, list) else [shape])}, each 0 or 1"
    return "a text" if kind == "Text" else f"a value of {kind}"


def _count(shape: Sequence[int]) -> str:
    if not shape:
        return "a number"
    return f"{shape[0]} numbers" if len(shape) == 1 else f"numbers of the shape {'x'.join(map(str, shape))}"


def _bound(bound: Any, outermost: Callable[[Any], Any]) -> str:
    """Write a bound of a Box: of each number, if they differ and are few."""
    if not isinstance(bound, list):
        return number(bound)
    values = np.asarray(bound, dtype=float).ravel()
    if values.size > _MOST_BLOCKS:
        return number(outermost(values))
    return f"[{', '.join(map(number, values))}]"


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_plain(part)}" for key, part in value.items())
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple) and any(isinstance(part, dict | list | tuple | str) for part in value):
        return "; ".join(_plain(part) for part in value)
    array = np.asarray(value)
    if array.dtype == object or array.dtype.kind in "US":
        return str(value)[:2000]
    if array.ndim == 0:
        return _number(array)
    shape, note = "x".join(map(str, array.shape)), ""
    if array.size > _MOST_NUMBERS:
        blocks = _averages(array)
        low, high = _number(array.min()), _number(array.max())
        note = f", from {low} to {high}; the averages of {'x'.join(map(str, blocks.shape))} equal blocks"
        array = blocks
    if array.ndim == 1 and not note:
        return f"[{', '.join(map(_number, array))}]"
    rows = "\n".join(" ".join(map(_number, row.ravel())) for row in (array if array.ndim > 1 else array[None]))
    return f"numbers of the shape {shape}{note}:\n{rows}"


def _averages(array: Any) -> Any:
    """Reduce an array to a coarse picture of it, without its further dimensions (colors)."""
    found = np.asarray(array, dtype=float)
    if found.ndim > 2:  # noqa: PLR2004
        found = found.mean(axis=tuple(range(2, found.ndim)))
    for axis in range(found.ndim):
        parts = np.array_split(found, min(found.shape[axis], _MOST_BLOCKS), axis=axis)
        found = np.stack([part.mean(axis=axis) for part in parts], axis=axis)
    return found.round(2)


def _number(value: Any) -> str:
    return number(value) if np.asarray(value).dtype.kind == "f" else str(int(value))
