"""From a network's output to an action: the likeliest one, or a sample; real numbers are brought into their bounds."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces
from ray.rllib.core.distribution.torch.torch_distribution import TorchDiagGaussian, TorchSquashedGaussian
from ray.rllib.utils.spaces.space_utils import unsquash_action

from mosaic_worker.errors import RequestError

__all__ = ["Decider"]

Array = np.ndarray[Any, Any]


class Decider:
    """Decides for the agents of one network. Each row is decided alone, so that its neighbours do not matter."""

    def __init__(self, module: Any, actions: Any, *, is_value: bool) -> None:
        """Take the network and its action space; `is_value`: its outputs are values of actions, as those of DQN."""
        self._actions = actions
        self._is_value = is_value
        self._kind = None if is_value else module.get_inference_action_dist_cls()

    @property
    def can_sample(self) -> bool:
        """Whether actions have probabilities; values of actions have none."""
        return not self._is_value

    def decide(self, output: Array, mask: Any, generator: np.random.Generator | None) -> Any:
        """Choose an action by one row of outputs; without a generator the likeliest one."""
        if isinstance(self._actions, spaces.Discrete):
            return self._choose(_legal(output, mask), generator)
        if mask is not None and not np.all(mask):
            raise RequestError(f"only discrete actions have a mask, not {self._actions}")
        if isinstance(self._actions, spaces.MultiDiscrete):
            ends = np.cumsum(self._actions.nvec)[:-1]
            parts = [self._choose(part, generator) for part in np.split(output, ends)]
            return np.asarray(parts, self._actions.dtype)
        return self._real(output, generator)

    def probabilities(self, output: Array, mask: Any) -> Array | None:
        """The probabilities of discrete actions, if there are any."""
        if self._is_value or not isinstance(self._actions, spaces.Discrete):
            return None
        return _softmax(_legal(output, mask))

    def _choose(self, scores: Array, generator: np.random.Generator | None) -> int:
        if generator is None or self._is_value:
            return int(np.argmax(scores))
        edges = np.cumsum(_softmax(scores))
        return int(np.searchsorted(edges, generator.random() * edges[-1], side="right"))

    def _real(self, output: Array, generator: np.random.Generator | None) -> Array:
        mean, log_std = np.split(output, 2)
        noise = 0.0 if generator is None else generator.standard_normal(mean.shape).astype(np.float32)
        if self._kind is not None and issubclass(self._kind, TorchSquashedGaussian):
            # RLlib's greedy SAC takes the mean before it is squashed, which is not the action it learned.
            action = np.tanh(mean + noise * np.exp(np.clip(log_std, -20.0, 2.0)))
        elif self._kind is not None and issubclass(self._kind, TorchDiagGaussian):
            action = mean + noise * np.exp(log_std)
        else:
            raise RequestError(f"actions of {self._kind} cannot be chosen here")
        unsquashed = unsquash_action(action.reshape(self._actions.shape), self._actions)
        return np.asarray(unsquashed, self._actions.dtype)


def _legal(scores: Array, mask: Any) -> Array:
    if mask is None:
        return scores
    legal = np.asarray(mask).reshape(-1) > 0
    if legal.shape != scores.shape:
        raise RequestError(f"action_mask has {legal.size} actions, the policy {scores.size}")
    if not legal.any():
        raise RequestError("action_mask: no action is legal")
    return np.where(legal, scores, -np.inf)


def _softmax(scores: Array) -> Array:
    powers = np.exp((scores - scores.max()).astype(np.float64))
    return powers / powers.sum()


def only_mask(seen: Any) -> Any:
    """The mask in what an agent sees, if there is one."""
    return seen.get("action_mask") if isinstance(seen, Mapping) else None
