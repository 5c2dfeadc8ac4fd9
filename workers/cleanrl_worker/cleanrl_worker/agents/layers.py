"""How a layer's weights begin."""

import math
from typing import TypeVar

from torch import nn

__all__ = ["orthogonal"]

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def orthogonal(layer: Layer, gain: float = math.sqrt(2)) -> Layer:
    """Begin with orthogonal weights and no bias, which keeps the size of what passes through."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
