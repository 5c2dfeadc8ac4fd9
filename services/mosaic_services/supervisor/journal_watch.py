"""Watches the journals of interactive attempts by inotify, so that replies are published at once."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import struct
import time
from typing import TYPE_CHECKING

from mosaic_bus.logs import Logger

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from mosaic_bus.messages import StreamId

__all__ = ["JournalWatch"]

_log = Logger()

_IN_MODIFY = 0x02
_EVENT = struct.Struct("iIII")
_READ_BYTES = 64 * 1024
# Least seconds between two looks, so that a worker that writes without pause costs little more than others.
_GAP_S = 0.002

_libc = ctypes.CDLL(None, use_errno=True)


class JournalWatch:
    """Calls back when a journal has grown. Without inotify, replies wait for the bridge's next turn."""

    def __init__(self, grew: Callable[[StreamId, float], None]) -> None:
        self._grew = grew
        self._watches: dict[int, StreamId] = {}
        self._inotify: int | None = None

    def add(self, stream: StreamId, journal: Path) -> None:
        """Watch a journal."""
        try:
            journal.touch(0o600)  # Only what exists can be watched.
            if self._inotify is None:
                self._inotify = _called(_libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
                asyncio.get_running_loop().add_reader(self._inotify, self._read, self._inotify)
            watch = _called(_libc.inotify_add_watch(self._inotify, os.fsencode(journal), _IN_MODIFY))
        except OSError as error:
            _log.warning("cannot watch a journal: replies will be delayed", journal=str(journal), reason=str(error))
        else:
            self._watches[watch] = stream

    def forget(self, stream: StreamId) -> None:
        """Stop watching a journal."""
        for watch in [each for each, watched in self._watches.items() if watched == stream]:
            del self._watches[watch]
            _libc.inotify_rm_watch(self._inotify, watch)

    def _read(self, inotify: int) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(inotify)
        loop.call_later(_GAP_S, loop.add_reader, inotify, self._read, inotify)
        changed: set[int] = set()
        with contextlib.suppress(BlockingIOError):
            events = os.read(inotify, _READ_BYTES)
            offset = 0
            while offset < len(events):
                watch, _, _, name_length = _EVENT.unpack_from(events, offset)
                changed.add(watch)
                offset += _EVENT.size + name_length
        for watch in changed & self._watches.keys():
            self._grew(self._watches[watch], time.monotonic())


def _called(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
