"""The contract between MOSAIC's parts: what a message is, what it means, and how it travels."""

from mosaic_bus.client import BusClient, Subscription
from mosaic_bus.envelope import PROTOCOL_VERSION, Header, Message
from mosaic_bus.errors import BusError, CommandRefusedError, NoAnswerError, NotConnectedError
from mosaic_bus.home import Address, Home
from mosaic_bus.sync import Bus

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
