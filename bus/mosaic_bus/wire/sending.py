"""Sending multipart messages without blocking.

pyzmq's own `send_multipart` combines enumeration flags for each part, which takes as long as sending the part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import zmq

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["send_now"]

_NOW = int(zmq.NOBLOCK)
_NOW_AND_MORE = int(zmq.NOBLOCK) | int(zmq.SNDMORE)


def send_now(socket: zmq.Socket[bytes], parts: Sequence[bytes | zmq.Frame], *, copy: bool) -> None:
    """Send a message, or raise `zmq.Again` without having sent any of it."""
    for part in parts[:-1]:
        socket.send(part, _NOW_AND_MORE, copy=copy)
    socket.send(parts[-1], _NOW, copy=copy)
