"""A network of a checkpoint, asked for several episodes at once, and what it remembers of each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from ray.rllib.algorithms.dqn.default_dqn_rl_module import QF_PREDS, DefaultDQNRLModule
from ray.rllib.core.columns import Columns

__all__ = ["Lane", "Network", "use_one_thread"]

_ROWS = 16
"""Rows of every forward pass of a small network; missing ones are zeros."""
_SMALL_NETWORK = 1_000_000
"""Weights up to which a network is small; in a larger one, 16 rows take much longer than one."""

Array = np.ndarray[Any, Any]


@dataclass
class Lane:
    """One of the episodes that are played at once, for one agent."""

    generator: np.random.Generator
    memory: dict[str, Any] = field(default_factory=dict)
    """The state of a recurrent network."""


class Network:
    """An RLModule that gives a row the same output in whatever company."""

    def __init__(self, module: Any) -> None:
        """Take a module; it is probed here."""
        module.eval()
        self.module = module
        self.is_value = isinstance(module, DefaultDQNRLModule)
        self._start = module.get_initial_state() if module.is_stateful() else {}
        weights = sum(weight.numel() for weight in module.parameters())
        self._rows = _ROWS if weights <= _SMALL_NETWORK and self._places_are_equal() else 1

    def outputs(self, seen: Sequence[Any], lanes: Sequence[Lane]) -> list[Array]:
        """One row of outputs for each observation."""
        found: list[Array] = []
        for begin in range(0, len(seen), self._rows):
            found += self._forward(seen[begin : begin + self._rows], lanes[begin : begin + self._rows])
        return found

    def _forward(self, seen: Sequence[Any], lanes: Sequence[Lane]) -> list[Array]:
        batch: dict[str, Any] = {Columns.OBS: _stack(seen, self._rows)}
        if self._start:
            for lane in lanes:
                lane.memory = lane.memory or self._start
            batch[Columns.STATE_IN] = _stack([lane.memory for lane in lanes], self._rows)
            batch[Columns.OBS] = _map(lambda part: part[:, None], batch[Columns.OBS])
        with torch.inference_mode():
            out = self.module.compute_q_values(batch) if self.is_value else self.module.forward_inference(batch)
        rows = out[QF_PREDS if self.is_value else Columns.ACTION_DIST_INPUTS].numpy()
        if self._start:
            rows = rows[:, 0]
            for row, lane in enumerate(lanes):
                lane.memory = _map(lambda part, row=row: part[row].numpy(), out[Columns.STATE_OUT])
        return [rows[row] for row in range(len(seen))]

    def _places_are_equal(self) -> bool:
        """Whether a row's bits depend neither on its place in a batch nor on its neighbours.

        Kernels of some processors treat the last rows of a batch differently.
        """
        draw, self._rows = np.random.default_rng(0), _ROWS
        space = self.module.observation_space
        samples = [_map(lambda part: draw.random(part.shape, np.float32), space) for _ in range(_ROWS)]
        blank = [Lane(draw) for _ in samples]
        together = self._forward(samples, blank)
        alone = [self._forward([sample], [Lane(draw)])[0] for sample in samples]
        return all(np.array_equal(one, other) for one, other in zip(together, alone, strict=True))


def use_one_thread() -> None:
    """Compute in one thread: small networks gain nothing from more, and results must not depend on their number."""
    torch.set_num_threads(1)


def _map(change: Callable[[Any], Any], value: Any) -> Any:
    parts = getattr(value, "spaces", value)
    if isinstance(parts, Mapping):
        return {key: _map(change, part) for key, part in parts.items()}
    return change(value)


def _stack(values: Sequence[Any], rows: int) -> Any:
    """Join the values of several lanes, with zeros for those that are missing."""
    first = values[0]
    if isinstance(first, Mapping):
        return {key: _stack([value[key] for value in values], rows) for key in first}
    joined = np.zeros((rows, *np.shape(first)), np.float32)
    joined[: len(values)] = values
    return torch.from_numpy(joined)
