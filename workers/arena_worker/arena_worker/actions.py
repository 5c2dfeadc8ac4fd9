"""Actions: is one legal, how does it go into the hash of an episode, and what stands in for a missing one."""

from typing import Any

import numpy as np

from arena_worker.process import PolicyError
from mosaic_worker.encoding import encode
from mosaic_worker.meanings import find_noop
from mosaic_worker.spaces import value_from_json

__all__ = ["Moves"]


class Moves:
    """The actions of one agent."""

    def __init__(self, space: Any, meanings: list[str] | None, keys: list[str | None] | None = None) -> None:
        """Know the space, and the names and keys of its actions if it has any."""
        self.keys = keys
        self._space = space
        self._meanings = meanings
        self._kind = type(space).__name__
        self._first = int(getattr(space, "start", 0)) if self._kind == "Discrete" else 0
        self.count = int(space.n) if self._kind == "Discrete" else 0

    def legal(self, action: Any, mask: Any) -> Any:
        """Return an action as the environment takes it; PolicyError if it is illegal.

        A vector outside of the bounds is clipped to them, since Gaussian policies reach beyond.
        """
        if self._kind == "Discrete":
            index = action - self._first if type(action) is int else -1
            if 0 <= index < self.count and (mask is None or mask[index]):
                return action
            if isinstance(action, float) and action.is_integer():
                return self.legal(int(action), mask)
            raise self._illegal(action, "is not legal now" if 0 <= index < self.count else f"is not in {self._space}")
        try:
            value = value_from_json(self._space, action)
        except Exception as error:
            raise self._illegal(action, f"is not in {self._space}: {error}") from None
        if self._kind == "Box":
            if not np.isfinite(value).all():
                raise self._illegal(action, "has numbers that are not finite")
            value = np.clip(value, self._space.low, self._space.high)
        if not self._space.contains(value):
            raise self._illegal(action, f"is not in {self._space}")
        return value

    def hashed(self, action: Any) -> bytes:
        """Return the bytes of an action, the same on every machine."""
        if type(action) is int:
            return action.to_bytes(8, "little", signed=True)
        if isinstance(action, np.ndarray):
            return np.ascontiguousarray(action.astype(action.dtype.newbyteorder("<"))).tobytes()
        return encode(action)

    def random(self, mask: Any, generator: np.random.Generator) -> Any:
        """Return a random legal action."""
        if self._kind == "Discrete":
            legal = np.arange(self.count) if mask is None else np.flatnonzero(mask)
            return self._first + int(generator.choice(legal)) if legal.size else self._first
        self._space.seed(int(generator.integers(2**31)))
        return self._space.sample()

    def noop(self, mask: Any) -> Any:
        """Return the legal action that comes closest to doing nothing."""
        if self._kind == "Discrete":
            wanted = find_noop(self._meanings) or 0
            legal = [wanted] if mask is None else np.flatnonzero(mask)
            return self._first + int(wanted if wanted in legal or not len(legal) else legal[0])
        if self._kind == "Box":
            return np.clip(np.zeros(self._space.shape, self._space.dtype), self._space.low, self._space.high)
        return value_from_json(self._space, np.zeros(self._space.shape, self._space.dtype))

    @property
    def actions(self) -> range:
        """All discrete actions."""
        return range(self._first, self._first + self.count)

    def label(self, action: Any) -> str:
        """Name an action for people."""
        if type(action) is int and self._meanings is not None:
            return self._meanings[action - self._first]
        return encode(action).decode()

    def legal_moves(self, mask: Any) -> list[dict[str, Any]] | None:
        """List the legal actions with their names; None if they cannot be listed."""
        if self._kind != "Discrete":
            return None
        found = range(self.count) if mask is None else np.flatnonzero(mask).tolist()
        return [
            {
                "action": self._first + index,
                "label": self.label(self._first + index),
                "key": self.keys[index] if self.keys is not None else None,
            }
            for index in found
        ]

    @staticmethod
    def _illegal(action: Any, why: str) -> PolicyError:
        return PolicyError("illegal", f"action {str(action)[:80]} {why}")
