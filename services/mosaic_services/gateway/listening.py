"""Where the gateway listens: checks the address and finds a free port."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
from typing import TYPE_CHECKING

from mosaic_services.gateway.errors import CannotListenError, UnsafeAddressError

if TYPE_CHECKING:
    from mosaic_services.settings.model import GatewaySettings

__all__ = ["allowed_hosts", "check_address", "listen"]

_TRIES = 20
_DEFAULT_PORTS = frozenset({80, 443})


def check_address(settings: GatewaySettings) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return the address to listen on; refuse one that others can reach if nothing protects what is sent."""
    try:
        address = ipaddress.ip_address(settings.bind)
    except ValueError:
        said = "gateway.bind is an IP address, such as 127.0.0.1 or 0.0.0.0"
        raise CannotListenError(settings.bind, settings.port, said) from None
    secure = bool(settings.tls_certificate and settings.tls_key)
    if not (address.is_loopback or secure or settings.plain_http):
        raise UnsafeAddressError(settings.bind)
    return address


def listen(settings: GatewaySettings) -> socket.socket:
    """Return a socket that listens. If another stack has the port, the next free one is taken."""
    host, port, address = settings.bind, settings.port, check_address(settings)
    last = 0
    for candidate in [*range(port, min(port + _TRIES, 65_536)), 0] if port else [0]:
        found = socket.socket(socket.AF_INET6 if address.version == 6 else socket.AF_INET, socket.SOCK_STREAM)  # noqa: PLR2004
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, candidate))
            found.listen(128)
        except OSError as error:
            found.close()
            last = error.errno or 0
            if last not in {errno.EADDRINUSE, errno.EACCES}:
                break
        else:
            found.setblocking(False)
            return found
    raise CannotListenError(host, port, os.strerror(last))


def allowed_hosts(settings: GatewaySettings, port: int) -> frozenset[str]:
    """Return what the Host header of a request may be."""
    names = {"127.0.0.1", "localhost", "[::1]"}
    if settings.bind not in {"0.0.0.0", "::"}:  # noqa: S104 - compared, not bound
        names.add(f"[{settings.bind}]" if ":" in settings.bind else settings.bind)
    names |= {name.strip().lower() for name in settings.hosts.split(",") if name.strip()}
    with_port = {f"{name}:{port}" for name in names}
    return frozenset(with_port | names if port in _DEFAULT_PORTS else with_port)
