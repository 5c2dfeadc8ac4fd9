"""What a network sees of an observation: a float32 vector or a small grey image, with action mask and global state.

RLlib's networks take vectors and square float images. Nothing here needs RLlib or an environment, so that a policy can
be asked by an environment in another process.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from mosaic_worker.errors import ConfigError

__all__ = ["MASK", "OBSERVATIONS", "STATE", "AgentView", "View"]

OBSERVATIONS = "observations"
MASK = "action_mask"
STATE = "state"
IMAGE_SIDE = 42
"""Images become grey squares with this side: RLlib has default convolutions for it."""
_SMALL = 16
"""An array with a side up to this is no image for people but a board or a map; every value of it is kept."""
_CLASSIC = {"observation", "action_mask"}
"""The keys of a PettingZoo observation that comes with a mask."""

Array = np.ndarray[Any, Any]
Space = gymnasium.Space[Any]


class View:
    """Converts the observations of one space. Images shrink and lose their colours; all else becomes a vector."""

    def __init__(self, raw: Space) -> None:
        """Take the environment's own space."""
        self.raw = raw
        self._is_image = isinstance(raw, spaces.Box) and raw.dtype == np.uint8 and _is_image(raw.shape)
        if self._is_image:
            self.space = spaces.Box(0.0, 1.0, (IMAGE_SIDE, IMAGE_SIDE, 1), np.float32)
        elif isinstance(raw, spaces.Box):
            with np.errstate(over="ignore"):  # A bound beyond float32 becomes infinite.
                low, high = (bound.reshape(-1).astype(np.float32) for bound in (raw.low, raw.high))
            self.space = spaces.Box(low, high, dtype=np.float32)
        elif raw.is_np_flattenable:
            flat: Any = spaces.utils.flatten_space(raw)
            self.space = spaces.Box(flat.low.astype(np.float32), flat.high.astype(np.float32), dtype=np.float32)
        else:
            raise ConfigError(f"environment.env_id: it has observations that no network here takes: {raw}")

    def __call__(self, observation: Any) -> Array:
        """Convert one observation."""
        if self._is_image:
            return _shrink(np.asarray(observation))
        if isinstance(self.raw, spaces.Box):
            return np.asarray(observation, np.float32).reshape(-1)
        return np.asarray(spaces.utils.flatten(self.raw, observation), np.float32)


class AgentView:
    """Converts what one agent sees.

    The result is an array if there is neither mask nor state, else a dict with `observations`, `action_mask` (1 for
    legal actions) and `state`.
    """

    def __init__(self, raw: Space, actions: Space, state_size: int = 0) -> None:
        """Take the agent's own spaces, and the length of the global state if there is one."""
        self.raw = raw
        self.actions = actions
        self.state_size = state_size
        self.has_mask = isinstance(raw, spaces.Dict) and raw.spaces.keys() == _CLASSIC
        self.inner: Space = raw["observation"] if isinstance(raw, spaces.Dict) and self.has_mask else raw
        self._view = View(self.inner)
        parts: dict[str, Space] = {OBSERVATIONS: self._view.space}
        if self.has_mask:
            parts[MASK] = spaces.Box(0.0, 1.0, (_number_of(actions),), np.float32)
        if state_size:
            parts[STATE] = spaces.Box(-np.inf, np.inf, (state_size,), np.float32)
        self.space: Space = spaces.Dict(parts) if len(parts) > 1 else self._view.space

    def __call__(self, observation: Any, state: Array | None = None) -> Any:
        """Convert an observation as the environment returns it."""
        if self.has_mask:
            return self.see(observation["observation"], observation["action_mask"], state)
        return self.see(observation, None, state)

    def see(self, observation: Any, mask: Any = None, state: Array | None = None) -> Any:
        """Convert an observation whose mask comes apart. Without a mask every action is legal; no state is zeros."""
        seen = self._view(observation)
        if not self.has_mask and not self.state_size:
            return seen
        parts = {OBSERVATIONS: seen}
        if self.has_mask:
            size = _number_of(self.actions)
            parts[MASK] = np.ones(size, np.float32) if mask is None else np.asarray(mask, np.float32).reshape(size)
        if self.state_size:
            parts[STATE] = np.zeros(self.state_size, np.float32) if state is None else state
        return parts

    def vector(self, observation: Any) -> Array:
        """The observation alone as a vector, for a global state made of all observations."""
        return self._view(observation["observation"] if self.has_mask else observation).reshape(-1)

    @property
    def vector_size(self) -> int:
        """The length of `vector`."""
        return int(np.prod(self._view.space.shape))


def _is_image(shape: tuple[int, ...]) -> bool:
    return len(shape) in {2, 3} and min(shape[:2]) > _SMALL


def _number_of(actions: Space) -> int:
    if not isinstance(actions, spaces.Discrete):
        raise ConfigError(f"environment.env_id: it masks actions that are not discrete: {actions}")
    return int(actions.n)


def _shrink(image: Array) -> Array:
    """Average the pixels of each cell of a grid; colours become grey."""
    grey = image.reshape(*image.shape[:2], -1).mean(axis=2, dtype=np.float32)
    sums = grey
    for axis in (0, 1):
        edges = np.arange(IMAGE_SIDE) * grey.shape[axis] // IMAGE_SIDE
        counts = np.diff([*edges, grey.shape[axis]]).astype(np.float32)
        sums = np.add.reduceat(sums, edges, axis=axis)
        sums /= counts[:, None] if axis == 0 else counts
    return (sums / np.float32(255)).reshape(IMAGE_SIDE, IMAGE_SIDE, 1)
