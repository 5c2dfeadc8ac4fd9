"""Running statistics of the discounted return, which scale the rewards that `ppo` learns from."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

__all__ = ["ReturnStatistics"]

_SMALLEST_DEVIATION = 1e-4


@dataclass
class ReturnStatistics:
    """Mean and variance of the discounted return, over all steps so far (Welford's algorithm, in batches).

    The critic shares its trunk with the actor. With returns in the hundreds its gradient is many times the actor's, and
    takes all of the clipped gradient norm: the policy hardly moves. Rewards divided by the standard deviation of the
    discounted return keep both gradients of the same order, whatever the environment pays.
    """

    count: float = 0.0
    mean: float = 0.0
    squares: float = 0.0
    """Sum of squared differences from the mean."""
    running: Any = field(default_factory=lambda: np.zeros(0))
    """Discounted return so far, one for each environment."""

    def state(self) -> dict[str, float]:
        """What a checkpoint keeps: episodes under way start again, so their running returns are left out."""
        return {"count": self.count, "mean": self.mean, "squares": self.squares}

    def scale(self, rewards: Any, ends: Any, gamma: float) -> None:
        """Take the rewards of a rollout, arrays of (step, environment), into account and scale them in place."""
        length, count = rewards.shape
        if len(self.running) != count:
            self.running = np.zeros(count)
        returns = np.empty((length, count))
        for at in range(length):
            self.running = self.running * gamma + rewards[at]
            returns[at] = self.running
            self.running = self.running * (1.0 - ends[at])
        total = self.count + returns.size
        difference = returns.mean() - self.mean
        self.squares += returns.var() * returns.size + difference**2 * self.count * returns.size / total
        self.mean += difference * returns.size / total
        self.count = total
        rewards /= max(_SMALLEST_DEVIATION, float(np.sqrt(self.squares / self.count)))
