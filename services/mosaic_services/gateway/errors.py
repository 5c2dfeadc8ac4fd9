"""Errors of the gateway."""

from __future__ import annotations

from mosaic_bus.errors import BusError

__all__ = ["CannotListenError", "UnsafeAddressError"]


class CannotListenError(BusError):
    """No port could be had."""

    def __init__(self, host: str, port: int, reason: str) -> None:
        super().__init__(f"the gateway cannot listen on {host}:{port}: {reason}; set gateway.port")


class UnsafeAddressError(BusError):
    """The address is open to others and nothing protects what is sent."""

    def __init__(self, host: str) -> None:
        super().__init__(
            f"gateway.bind = {host!r} is not loopback, and without TLS anybody on the way could read the token: set "
            "gateway.tls_certificate and gateway.tls_key, or gateway.plain_http = true if something else encrypts"
        )
