"""The contract between MOSAIC's parts: what a message is, what it means, and how it travels."""

from mosaic_bus.client import Bus, BusClient, Subscription
from mosaic_bus.errors import BusError, CommandRefusedError, NoAnswerError, NotConnectedError
from mosaic_bus.home import Home
from mosaic_bus.wire.address import Address
from mosaic_bus.wire.envelope import PROTOCOL_VERSION, Header, Message

__all__ = [
    "PROTOCOL_VERSION",
    "Address",
    "Bus",
    "BusClient",
    "BusError",
    "CommandRefusedError",
    "Header",
    "Home",
    "Message",
    "NoAnswerError",
    "NotConnectedError",
    "Subscription",
]
