"""The channel to an interactive attempt: whole lines into the FIFO that is its worker's stdin, without ever waiting."""

from __future__ import annotations

import array
import errno
import fcntl
import os
import select
import stat
import termios
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ChannelClosedError", "ChannelFullError", "tell"]

_PAGE = os.sysconf("SC_PAGE_SIZE")
_F_GETPIPE_SZ = 1032


class ChannelClosedError(Exception):
    """There is no FIFO, or nobody has it open."""


class ChannelFullError(Exception):
    """There is no room for the line."""

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting} bytes wait to be read")
        self.waiting = waiting


def tell(fifo: Path, line: bytes) -> None:
    """Write a line, which ends in a newline, whole or not at all."""
    try:
        # A worker can put anything in its folder: a link is not followed, and opening never waits.
        pipe = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        raise ChannelClosedError(error.strerror) from None
    try:
        if not stat.S_ISFIFO(os.fstat(pipe).st_mode):
            raise ChannelClosedError("it is no pipe")
        waiting = _waiting(pipe)
        if len(line) > select.PIPE_BUF and not _has_room(len(line), waiting, fcntl.fcntl(pipe, _F_GETPIPE_SZ)):
            raise ChannelFullError(waiting)
        try:
            os.write(pipe, line)  # Up to PIPE_BUF bytes are written whole or not at all.
        except BlockingIOError:
            raise ChannelFullError(waiting) from None
        except OSError as error:
            if error.errno != errno.EPIPE:
                raise
            raise ChannelClosedError(error.strerror) from None
    finally:
        os.close(pipe)


def _waiting(pipe: int) -> int:
    """How many bytes have not been read yet."""
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


def _has_room(length: int, waiting: int, capacity: int) -> bool:
    """Whether a line longer than PIPE_BUF is sure to fit: a pipe with less room would take a part of it.

    A pipe is made of pages. Linux adds to the last page what fits there, so any two neighbours hold more than one page
    of bytes together, the first aside, of which some may have been read.
    """
    used = 2 * (waiting // _PAGE) + 3 if waiting else 0
    return used + -(-length // _PAGE) <= capacity // _PAGE
