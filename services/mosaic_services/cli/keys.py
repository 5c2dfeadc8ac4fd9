"""Single keys from a terminal, without Enter and without waiting longer than asked."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import tty
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Keys"]

_NAMES = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1bOA": "up",
    "\x1bOB": "down",
    "\x1b": "escape",
    "\r": "enter",
    "\n": "enter",
    "\x7f": "escape",
    "k": "up",
    "j": "down",
}


class Keys:
    """Reads keys while its block lasts, then leaves the terminal as it was. Without a terminal there are none."""

    def __init__(self) -> None:
        self._fd = sys.stdin.fileno() if sys.stdin.isatty() else None
        self._saved: list[object] | None = None

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
        """Return the key pressed within `timeout` seconds: a character, or `up`, `down`, `enter`, `escape`."""
        if self._fd is None:
            select.select([], [], [], timeout)
            return None
        if not select.select([self._fd], [], [], timeout)[0]:
            return None
        text = os.read(self._fd, 32).decode(errors="replace")
        if not text:  # the terminal has gone
            return "q"
        return _NAMES.get(text, text[:1])
