"""The framework of a service: heartbeat, commands carried out once, a clean end."""

from mosaic_bus.refusals import explain
from mosaic_bus.service.base import HEARTBEAT_S, Service, serve

__all__ = ["HEARTBEAT_S", "Service", "explain", "serve"]
