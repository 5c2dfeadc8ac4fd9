"""Two agents that learn nothing: one acts at random, one does nothing."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from gymnasium import Space, spaces

from mosaic_worker.meanings import find_noop

__all__ = ["Agent", "PassiveAgent", "RandomAgent", "make_agent"]

_AGENT_STREAM = 1


class Agent(Protocol):
    """Chooses an action."""

    def act(self, observation: Any, action_mask: Any = None) -> Any:
        """Choose an action for an observation; a mask has a 1 for each legal action."""


class RandomAgent:
    """Samples the action space, uniformly over the legal actions."""

    def __init__(self, action_space: Space[Any], seed: int | None) -> None:
        """Derive the agent's seed from that of the episode, which the environment uses itself."""
        self._space = action_space
        if seed is not None:
            action_space.seed(int(np.random.SeedSequence((seed, _AGENT_STREAM)).generate_state(1)[0]))

    def act(self, observation: Any, action_mask: Any = None) -> Any:
        """Sample an action."""
        return self._space.sample(None if action_mask is None else _sampling_mask(self._space, action_mask))


class PassiveAgent:
    """Does nothing: the action that is named so, or else action 0, or zeros, or the nearest legal action."""

    def __init__(self, action_space: Space[Any], meanings: Sequence[str] | None = None) -> None:
        """Find the no-op action of the space; `meanings` names the actions of a discrete one."""
        self._space = action_space
        self._noop = noop(action_space)
        named = find_noop(meanings)
        if named is not None and isinstance(action_space, spaces.Discrete) and named < action_space.n:
            self._noop = int(action_space.start) + named

    def act(self, observation: Any, action_mask: Any = None) -> Any:
        """Return the no-op, or the first legal action if the mask forbids it."""
        if action_mask is None or not isinstance(self._space, spaces.Discrete):
            return self._noop
        allowed = np.flatnonzero(_sampling_mask(self._space, action_mask))
        start = int(self._space.start)
        return self._noop if not allowed.size or self._noop - start in allowed else start + int(allowed[0])


def make_agent(name: str, action_space: Space[Any], seed: int | None, meanings: Sequence[str] | None = None) -> Agent:
    """Make the agent that a config names."""
    return PassiveAgent(action_space, meanings) if name == "passive" else RandomAgent(action_space, seed)


def noop(space: Space[Any]) -> Any:
    """Return the action of a space that is closest to a no-op."""
    if isinstance(space, spaces.Discrete):
        start, count = int(space.start), int(space.n)
        return min(max(0, start), start + count - 1)
    if isinstance(space, spaces.Box):
        return np.clip(np.zeros(space.shape, dtype=space.dtype), space.low, space.high)
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        lowest = getattr(space, "start", 0)  # MultiDiscrete may start elsewhere
        return np.full(space.shape, lowest, dtype=space.dtype)
    if isinstance(space, spaces.Dict):
        return {key: noop(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(noop(part) for part in space.spaces)
    if isinstance(space, spaces.Text):
        return space.character_list[0] * space.min_length
    if isinstance(space, spaces.Sequence):
        return ()
    raise TypeError(f"no way to do nothing in a space of type {type(space).__name__}")


def _sampling_mask(space: Space[Any], mask: Any) -> Any:
    """Convert a mask to the form that the space's `sample` takes: int8 arrays, in tuples for compound spaces."""
    if isinstance(space, spaces.Dict):
        return {key: _sampling_mask(part, mask[key]) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_sampling_mask(part, item) for part, item in zip(space.spaces, mask, strict=True))
    if isinstance(space, spaces.MultiDiscrete):
        return tuple(np.asarray(item, dtype=np.int8) for item in mask)
    return np.asarray(mask, dtype=np.int8)
