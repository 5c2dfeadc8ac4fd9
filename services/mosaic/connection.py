"""One connection to the bus for all calls of this process, opened when first needed; it ends with the process.

If no stack runs, services of our own answer from what a stopped one has stored.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from typing import TYPE_CHECKING

from mosaic_bus import Bus
from mosaic_services.home import StackHome
from mosaic_services.stack.reading import has_stores, reading

if TYPE_CHECKING:
    from mosaic_bus.wire.address import Address

__all__ = ["bus"]

_lock = threading.Lock()
_open: tuple[int, Address, Bus] | None = None
_readers = contextlib.ExitStack()
atexit.register(_readers.close)


def bus() -> Bus:
    """The connection to the stack of `$MOSAIC_HOME`, or a new one after that has changed, or after a fork."""
    global _open  # noqa: PLW0603 - one connection is the point
    home = StackHome.find()
    address = home.address()
    with _lock:
        if _open is not None and _open[:2] == (os.getpid(), address):
            return _open[2]
        if _open is not None and _open[0] == os.getpid():
            _open[2].close()
        _open = (os.getpid(), address, Bus(_answering(home, address)))
        return _open[2]


def _answering(home: StackHome, address: Address) -> Address:
    folder = address.socket_folder
    if folder is None or (folder / "in.sock").exists() or not has_stores(home):
        return address
    return _readers.enter_context(reading(home))
