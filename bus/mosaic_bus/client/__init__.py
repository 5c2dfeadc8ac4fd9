"""Talking to the bus: an asynchronous client, and a plain front to it for scripts and notebooks."""

from mosaic_bus.client.connection import BusClient, Subscription
from mosaic_bus.client.follower import Follower
from mosaic_bus.client.live import Changes, LiveView
from mosaic_bus.client.plain import Bus, PlainFollower

__all__ = ["Bus", "BusClient", "Changes", "Follower", "LiveView", "PlainFollower", "Subscription"]
