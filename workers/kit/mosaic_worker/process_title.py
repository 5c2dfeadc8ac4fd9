"""Overwrites what /proc shows of this process: its command line and one environment variable.

The kernel shows the memory that held a process's arguments and environment when it was started. A process that was
forked and never called `exec` still shows those of its parent. The size of that memory is fixed at the start, so
the parent starts the process with arguments long enough to be overwritten.
"""

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path

__all__ = ["Title", "TitleError"]

# Places in /proc/self/stat, counted from after the name.
_ARG_START, _ARG_END, _ENV_START = 45, 46, 47


class TitleError(Exception):
    """The title cannot be found, or is too short for the new text."""


class Title:
    """The memory that holds this process's arguments and the variable that reserves room."""

    def __init__(self, variable: str) -> None:
        fields = Path("/proc/self/stat").read_bytes().rsplit(b")", 1)[1].split()
        start, end, environment = (int(fields[place]) for place in (_ARG_START, _ARG_END, _ENV_START))
        self._variable = variable
        self._arguments_at = (start, end - start)
        words = Path("/proc/self/environ").read_bytes().split(b"\0")
        offset = 0
        for word in words:
            if word.startswith(f"{variable}=".encode()):
                self._variable_at = (environment + offset, len(word) + 1)
                break
            offset += len(word) + 1
        else:
            raise TitleError(f"{variable} is not in the environment that this process was started with")
        # Never write to an address whose content is unexpected.
        if not start or ctypes.string_at(start, end - start) != Path("/proc/self/cmdline").read_bytes():
            raise TitleError("this system does not say where a process keeps its arguments")

    def check(self, arguments: Sequence[str], value: str) -> None:
        """Raise `TitleError` if these do not fit."""
        for text, (_, room) in self._lines(arguments, value):
            if len(text) >= room:
                raise TitleError(f"{len(text)} bytes do not fit into a title of {room}: {text[:200]!r}")

    def write_arguments(self, arguments: Sequence[str]) -> None:
        """Set /proc/PID/cmdline, truncated to the available room."""
        ((text, at), _) = self._lines(arguments, "")
        _write(text, at)

    def write_variable(self, value: str) -> None:
        """Set the variable in /proc/PID/environ; `os.environ` does not change."""
        (_, (text, at)) = self._lines((), value)
        _write(text, at)

    def _lines(
        self, arguments: Sequence[str], value: str
    ) -> tuple[tuple[bytes, tuple[int, int]], tuple[bytes, tuple[int, int]]]:
        words = b"\0".join(os.fsencode(word) for word in arguments)
        return (words, self._arguments_at), (os.fsencode(f"{self._variable}={value}"), self._variable_at)


def _write(text: bytes, at: tuple[int, int]) -> None:
    start, room = at
    text = text[: room - 1]
    ctypes.memset(start, 0, room)
    ctypes.memmove(start, text, len(text))
