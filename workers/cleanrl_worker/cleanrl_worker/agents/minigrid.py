"""The agent for MiniGrid and BabyAI: a view of 7 by 7 cells, three small integers each."""

import torch
from torch import Tensor, nn

from cleanrl_worker.agents.layers import orthogonal

__all__ = ["VIEW", "MinigridAgent", "MinigridCNN"]

VIEW = (7, 7, 3)
_FEATURES = 128
_LARGEST = 10.0
"""A cell is (object type, colour, state), of uint8; the maximum is 10, the last object type."""


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
        """Return the logits of the actions, one row per observation."""
        logits: Tensor = self.actor(self.cnn(observations))
        return logits

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits, and the value of each observation."""
        features = self.cnn(observations)
        return self.actor(features), self.critic(features).squeeze(-1)

    @staticmethod
    def dtype() -> torch.dtype:
        """The dtype of stored observations."""
        return torch.uint8


def _head(outputs: int, gain: float) -> nn.Sequential:
    return nn.Sequential(
        orthogonal(nn.Linear(_FEATURES, _FEATURES)), nn.ReLU(), orthogonal(nn.Linear(_FEATURES, outputs), gain)
    )
