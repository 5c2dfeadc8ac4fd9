"""The agent for what MiniGrid and BabyAI show: the 7 by 7 cells before the agent, three small numbers for each."""

import torch
from torch import Tensor, nn

from cleanrl_worker.agents.layers import orthogonal

__all__ = ["VIEW", "MinigridAgent", "MinigridCNN"]

VIEW = (7, 7, 3)
_FEATURES = 128
_LARGEST = 10.0
"""A cell is (kind of object, colour, state); the kinds go from 0 to 10 and nothing is larger, though it is a uint8."""


class MinigridCNN(nn.Module):
    """Turns a view into 128 features."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            orthogonal(nn.Conv2d(3, 32, 3, padding=1)),
            nn.ReLU(),
            orthogonal(nn.Conv2d(32, 64, 3, padding=1)),
            nn.ReLU(),
            orthogonal(nn.Conv2d(64, 64, 3, padding=1)),
            nn.ReLU(),
            nn.Flatten(),
            orthogonal(nn.Linear(64 * 7 * 7, _FEATURES)),
        )

    def forward(self, views: Tensor) -> Tensor:
        """Take uint8 of shape (B, 7, 7, 3)."""
        features: Tensor = self.layers(views.permute(0, 3, 1, 2).float() / _LARGEST)
        return features


class MinigridAgent(nn.Module):
    """The CNN, and an actor and a critic of two layers each."""

    def __init__(self, observation_shape: tuple[int, ...], actions: int) -> None:
        super().__init__()
        if observation_shape != VIEW:
            raise ValueError(f"a view of MiniGrid has shape {VIEW}, not {observation_shape}")
        self.cnn = MinigridCNN()
        self.actor = _head(actions, gain=0.01)
        self.critic = _head(1, gain=1.0)

    def logits(self, observations: Tensor) -> Tensor:
        """How much each action is preferred, one row for each observation."""
        logits: Tensor = self.actor(self.cnn(observations))
        return logits

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and the return that is expected from each observation on."""
        features = self.cnn(observations)
        return self.actor(features), self.critic(features).squeeze(-1)

    @staticmethod
    def dtype() -> torch.dtype:
        """In which form observations are kept and given."""
        return torch.uint8


def _head(outputs: int, gain: float) -> nn.Sequential:
    return nn.Sequential(
        orthogonal(nn.Linear(_FEATURES, _FEATURES)), nn.ReLU(), orthogonal(nn.Linear(_FEATURES, outputs), gain)
    )
