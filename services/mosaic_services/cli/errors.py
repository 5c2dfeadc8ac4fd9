"""Errors of the command line: a message, a hint and an exit code."""

from __future__ import annotations

__all__ = ["FAILED", "INTERRUPTED", "NO_STACK", "STOPPED", "USAGE", "CliError", "InputError", "NoStackError"]

FAILED = 1
USAGE = 2
NO_STACK = 3
STOPPED = 4
INTERRUPTED = 130


class CliError(Exception):
    """Base class of errors that end a command. `hint` says what to do, `detail` is shown with -v."""

    code = FAILED

    def __init__(self, message: str, hint: str = "", *, detail: str = "", code: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.detail = detail
        if code is not None:
            self.code = code


class InputError(CliError):
    """The user's input is invalid."""

    code = USAGE


class NoStackError(CliError):
    """No stack runs, or a service does not answer."""

    code = NO_STACK
