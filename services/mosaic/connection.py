"""One connection to the bus for all calls of this process, opened when first needed; it ends with the process."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

from mosaic_bus import Bus, Home

if TYPE_CHECKING:
    from mosaic_bus.wire.address import Address

__all__ = ["bus"]

_lock = threading.Lock()
_open: tuple[int, Address, Bus] | None = None


def bus() -> Bus:
    """The connection to the stack of `$MOSAIC_HOME`, or a new one after that has changed, or after a fork."""
    global _open  # noqa: PLW0603 - one connection is the point
    address = Home.find().address()
    with _lock:
        if _open is not None and _open[:2] == (os.getpid(), address):
            return _open[2]
        if _open is not None and _open[0] == os.getpid():
            _open[2].close()
        _open = (os.getpid(), address, Bus(address))
        return _open[2]
