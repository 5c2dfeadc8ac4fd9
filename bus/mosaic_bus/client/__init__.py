"""Talking to the bus: an asynchronous client, and a plain front to it for scripts and notebooks."""

from mosaic_bus.client.connection import BusClient, Subscription
from mosaic_bus.client.plain import Bus

__all__ = ["Bus", "BusClient", "Subscription"]
