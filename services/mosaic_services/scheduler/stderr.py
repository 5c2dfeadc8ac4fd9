"""A standard error that survives a full disk: what cannot be logged is counted, and the service goes on."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO, cast

if TYPE_CHECKING:
    from typing import Self

__all__ = ["ForgivingStream"]


class ForgivingStream:
    """Writes to another stream, and swallows the errors of the disk below it."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.unwritten = 0

    @classmethod
    def install(cls) -> Self:
        """Put one in the place of standard error."""
        made = cls(sys.stderr)
        sys.stderr = cast("TextIO", made)
        return made

    def write(self, text: str) -> int:
        """Write if that is possible."""
        try:
            return self.stream.write(text)
        except OSError:
            self.unwritten += 1
            return len(text)

    def flush(self) -> None:
        """Flush if that is possible."""
        try:
            self.stream.flush()
        except OSError:
            self.unwritten += 1
