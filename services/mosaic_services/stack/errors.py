"""Errors of a stack that does not start or does not end."""

from __future__ import annotations

__all__ = ["CANNOT_RUN", "FAILED", "StackError", "StackStoppedError"]

FAILED = 1
# The exit code of a service, or of `mosaic up`, that refuses to run: its input, its home or its bus is unusable.
CANNOT_RUN = 2


class StackError(Exception):
    """A stack that could not be started or stopped; `hint` says what to do, `code` is the exit code to end with."""

    def __init__(self, message: str, hint: str = "", *, code: int = FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code


class StackStoppedError(Exception):
    """A signal asked for the stack to stop while it was starting."""
