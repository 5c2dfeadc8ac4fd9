"""The channel to an interactive attempt: writes whole lines into the FIFO that is its worker's stdin; never blocks."""

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
    """There is no FIFO, or no process has it open for reading."""


class ChannelFullError(Exception):
    """The FIFO has no room for the line."""

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting} bytes wait to be read")
        self.waiting = waiting


def tell(fifo: Path, line: bytes) -> None:
    """Write a line, which ends in a newline, whole or not at all."""
    try:
        # The worker can put anything in its folder, so do not follow links, and do not block.
        pipe = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        raise ChannelClosedError(error.strerror) from None
    try:
        if not stat.S_ISFIFO(os.fstat(pipe).st_mode):
            raise ChannelClosedError("not a FIFO")
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
    """Return the number of bytes that wait to be read."""
    count = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, count)
    return count[0]


def _has_room(length: int, waiting: int, capacity: int) -> bool:
    """Whether a line longer than PIPE_BUF is sure to fit; otherwise the pipe might take only part of it.

    A pipe is a list of pages. Linux appends to the last page if the data fits, so two neighbouring pages always hold
    more than one page of data, except that the reader may have consumed part of the first.
    """
    used = 2 * (waiting // _PAGE) + 3 if waiting else 0
    return used + -(-length // _PAGE) <= capacity // _PAGE
