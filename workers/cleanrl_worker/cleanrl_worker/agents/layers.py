"""Initialisation of layers."""

import math
from typing import TypeVar

from torch import nn

__all__ = ["orthogonal"]

Layer = TypeVar("Layer", nn.Linear, nn.Conv2d)


def orthogonal(layer: Layer, gain: float = math.sqrt(2)) -> Layer:
    """Initialise with orthogonal weights and zero bias, which preserves the scale of activations."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer
