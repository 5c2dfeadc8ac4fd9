"""What every describer of observations has, and the one for environments that no other knows."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["Describer", "Scene", "number"]

_MOST_NUMBERS = 64
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

    @property
    def name(self) -> str:
        """The environment's name without its package: `tictactoe_v3` of `pettingzoo.classic.tictactoe_v3`."""
        return self.env_id.rpartition(":")[2].replace("/", ".").rpartition(".")[2]


class Describer:
    """Writes any observation as numbers, with the environment's own docstring as rules."""

    def __init__(self, scene: Scene) -> None:
        """Describe what an agent sees in a scene."""
        self.scene = scene
        self.names: Sequence[str] | None = scene.meanings
        """The names of the actions."""

    @property
    def rules(self) -> str:
        """What the environment is about: its docstring, without what is about Python."""
        doc = self.scene.doc
        end = _END_OF_RULES.search(doc)
        return (doc[: end.start()] if end else doc).strip()[:_MOST_RULES]

    def text(self, observation: Any) -> str:
        """Describe an observation."""
        return f"You observe: {_plain(observation)}"


def number(value: Any) -> str:
    """Write a number with as many digits as matter."""
    return f"{float(value):.3g}"


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_plain(part)}" for key, part in value.items())
    if isinstance(value, str):
        return value
    array = np.asarray(value)
    if array.dtype == object or array.dtype.kind in "US":
        return str(value)[:2000]
    if array.size == 1 and array.ndim == 0:
        return number(array) if array.dtype.kind == "f" else str(array.item())
    if array.size <= _MOST_NUMBERS:
        shown = [number(each) if array.dtype.kind == "f" else str(int(each)) for each in array.ravel()]
        shape = "" if array.ndim == 1 else f" (shape {'x'.join(map(str, array.shape))})"
        return f"[{', '.join(shown)}]{shape}"
    low, high = number(array.min()), number(array.max())
    return f"{array.size} numbers of the shape {'x'.join(map(str, array.shape))}, from {low} to {high}"
