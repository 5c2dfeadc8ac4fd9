"""The agent for vector observations."""

import torch
from torch import Tensor, nn

from cleanrl_worker.agents.layers import orthogonal

__all__ = ["MLPAgent"]

_HIDDEN = 64


class MLPAgent(nn.Module):
    """A shared trunk of two layers of 64 with Tanh, and an actor and a critic head."""

    def __init__(self, observation_shape: tuple[int, ...], actions: int) -> None:
        super().__init__()
        (numbers,) = observation_shape
        self.trunk = nn.Sequential(
            orthogonal(nn.Linear(numbers, _HIDDEN)),
            nn.Tanh(),
            orthogonal(nn.Linear(_HIDDEN, _HIDDEN)),
            nn.Tanh(),
        )
        # A small gain makes the initial policy nearly uniform.
        self.actor = orthogonal(nn.Linear(_HIDDEN, actions), gain=0.01)
        self.critic = orthogonal(nn.Linear(_HIDDEN, 1), gain=1.0)

    def logits(self, observations: Tensor) -> Tensor:
        """Return the logits of the actions, one row per observation."""
        logits: Tensor = self.actor(self.trunk(observations))
        return logits

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits, and the value of each observation."""
        features = self.trunk(observations)
        return self.actor(features), self.critic(features).squeeze(-1)

    @staticmethod
    def dtype() -> torch.dtype:
        """The dtype of stored observations."""
        return torch.float32
