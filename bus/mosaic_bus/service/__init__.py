"""The framework of a service: heartbeat, commands carried out once, a clean end."""

from mosaic_bus.service.base import HEARTBEAT_S, Service, explain, serve

__all__ = ["HEARTBEAT_S", "Service", "explain", "serve"]
