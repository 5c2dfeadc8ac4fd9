"""The agent for observations that are a row of numbers."""

import torch
from torch import Tensor, nn

from cleanrl_worker.agents.layers import orthogonal

__all__ = ["MLPAgent"]

_HIDDEN = 64


class MLPAgent(nn.Module):
    """Two layers of 64 with Tanh, from which an actor and a critic branch."""

    def __init__(self, observation_shape: tuple[int, ...], actions: int) -> None:
        super().__init__()
        (numbers,) = observation_shape
        self.trunk = nn.Sequential(
            orthogonal(nn.Linear(numbers, _HIDDEN)),
            nn.Tanh(),
            orthogonal(nn.Linear(_HIDDEN, _HIDDEN)),
            nn.Tanh(),
        )
        # A small gain lets the first policy be nearly uniform, whatever it sees.
        self.actor = orthogonal(nn.Linear(_HIDDEN, actions), gain=0.01)
        self.critic = orthogonal(nn.Linear(_HIDDEN, 1), gain=1.0)

    def logits(self, observations: Tensor) -> Tensor:
        """How much each action is preferred, one row for each observation."""
        logits: Tensor = self.actor(self.trunk(observations))
        return logits

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and the return that is expected from each observation on."""
        features = self.trunk(observations)
        return self.actor(features), self.critic(features).squeeze(-1)

    @staticmethod
    def dtype() -> torch.dtype:
        """In which form observations are kept and given."""
        return torch.float32
