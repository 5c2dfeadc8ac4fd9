"""Where a broker listens."""

from __future__ import annotations

import ipaddress
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from mosaic_bus.errors import BusError, CannotBindError, UnsafeAddressError

__all__ = ["Address"]

_OWNER_ONLY = 0o700
_LAST_PORT = 65535


@dataclass(frozen=True)
class Address:
    """The two endpoints of a broker: what clients send to (`ingress`) and what they read from (`egress`)."""

    ingress: str
    egress: str

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read `tcp://host:port` (out is port + 1) or `ipc:///folder`."""
        # A folder is not parsed as a URL: it may contain "#" and "?".
        if text.startswith("ipc:///") and (folder := text.removeprefix("ipc://").rstrip("/")):
            return cls(f"ipc://{folder}/in.sock", f"ipc://{folder}/out.sock")
        try:
            parts = urlsplit(text)
            name, port = parts.hostname, parts.port
        except ValueError:
            name, port = None, None
        if not text.startswith("tcp://") or not name or not port:
            raise BusError(f"bus address {text!r} is neither tcp://host:port nor ipc:///folder")
        if port >= _LAST_PORT:
            raise BusError(f"bus address {text!r} needs two ports, {port} and the next, which does not exist")
        host = f"[{name}]" if ":" in name else name
        return cls(f"tcp://{host}:{port}", f"tcp://{host}:{port + 1}")

    def __str__(self) -> str:
        """The form that `parse` reads."""
        folder = self.socket_folder
        return self.ingress if folder is None else f"ipc://{folder}"

    @property
    def socket_folder(self) -> Path | None:
        """Where the socket files lie; None for tcp."""
        if not self.ingress.startswith("ipc://"):
            return None
        return Path(self.ingress.removeprefix("ipc://")).parent

    @property
    def is_ipv6(self) -> bool:
        """Whether ZeroMQ needs its IPv6 option for this address."""
        return "[" in self.ingress and self.ingress.startswith("tcp://")

    def require_private(self) -> None:
        """Refuse an address that other machines or users can reach: the bus has no keys yet."""
        if (folder := self.socket_folder) is not None:
            try:
                folder.mkdir(mode=_OWNER_ONLY, parents=True, exist_ok=True)
            except OSError as error:
                raise CannotBindError(self.ingress, str(error)) from error
            found = folder.stat()
            if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
                raise UnsafeAddressError(self.ingress, f"{folder} is open to other users (chmod 700 it)")
            return
        host = urlsplit(self.ingress).hostname or ""
        try:
            private = host == "localhost" or ipaddress.ip_address(host).is_loopback
        except ValueError:
            private = False
        if not private:
            raise UnsafeAddressError(self.ingress)
