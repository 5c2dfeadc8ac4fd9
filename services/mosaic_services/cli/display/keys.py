"""Reads single keys from a terminal, with a time-out."""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import termios
import tty
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

__all__ = ["Keys", "split"]

# A key that sends several bytes, such as an arrow, or one character.
_KEY = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)

_NAMES = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[C": "right",
    "\x1b[D": "left",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1bOC": "right",
    "\x1bOD": "left",
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "escape",
}
_LETTERS = {"k": "up", "j": "down"}


class Keys:
    """A context in which keys are read; afterwards the terminal is restored. Without a terminal there are no keys."""

    def __init__(self, *, letters: bool = False) -> None:
        """With `letters`, j and k are letters, else arrows."""
        self._names = _NAMES if letters else {**_NAMES, **_LETTERS}
        self._fd = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._saved: list[object] | None = None
        self._waiting: list[str] = []

    def __enter__(self) -> Self:
        if self._fd is not None:
            self._saved = termios.tcgetattr(self._fd)
            tty.setcbreak(self._fd)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fd is not None and self._saved is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self._fd, termios.TCSADRAIN, self._saved)  # type: ignore[arg-type]

    def next(self, timeout: float) -> str | None:
        """Return the key pressed within `timeout` seconds: a character, or a name such as `up`."""
        if self._fd is None:
            select.select([], [], [], timeout)
            return None
        if not self._waiting:
            if not select.select([self._fd], [], [], timeout)[0]:
                return None
            self._waiting = split(os.read(self._fd, 256).decode(errors="replace"), self._names) or [
                "q"
            ]  # the terminal has gone
        return self._waiting.pop(0)


def split(text: str, names: Mapping[str, str] = {**_NAMES, **_LETTERS}) -> list[str]:
    """Split input that arrived together into keys, with the names of those that have one."""
    return [names.get(each, each) for each in _KEY.findall(text)]
