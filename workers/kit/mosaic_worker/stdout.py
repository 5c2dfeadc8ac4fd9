"""Reserves stdout for events; whatever libraries print goes to the log, which is stderr.

Descriptor 1 is duplicated for the emitter and then redirected to descriptor 2. Redirecting the descriptor, not only
`sys.stdout`, also covers C libraries and child processes.

Child processes do not inherit the duplicate. To let a subprocess write events, hand it on explicitly:
`subprocess.Popen(…, **journal_for_child(fd, os.environ))`.
"""

import contextlib
import errno
import io
import os
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any, TypedDict

from mosaic_worker.errors import StdoutError

__all__ = ["JOURNAL_FD", "ChildJournal", "journal_for_child", "log_stream", "note", "protect_stdin", "protect_stdout"]

JOURNAL_FD = "MOSAIC_JOURNAL_FD"


class ChildJournal(TypedDict):
    """Arguments of `subprocess.Popen` that hand the journal to a child."""

    env: dict[str, str]
    pass_fds: tuple[int, ...]


def protect_stdout(environ: MutableMapping[str, str]) -> int:
    """Take stdout for events and return the descriptor to write them to; prints go to stderr from now on.

    If a parent set MOSAIC_JOURNAL_FD in `environ`, events go there. The variable is removed, since this process's own
    children do not inherit the descriptor.
    """
    if sys.stdout is not None:
        sys.stdout.flush()
    given = environ.pop(JOURNAL_FD, None)
    fd = _open_fd(given) if given is not None else None
    if fd is None:
        try:
            fd = os.dup(1)
        except OSError as error:
            raise StdoutError(
                f"stdout (descriptor 1) is not open, so there is nowhere to write events: {error}"
            ) from error
    os.set_inheritable(fd, False)
    _ensure_stderr()
    os.dup2(2, 1)
    sys.stdout, sys.stderr = log_stream(1), log_stream(2)
    return fd


class _LogFile(io.FileIO):
    """A file that drops what a full disk does not take, so that a print cannot end a run."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data) or 0
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                raise
            return memoryview(data).nbytes


def log_stream(fd: int) -> io.TextIOWrapper:
    """Return a text stream to a descriptor of the log, written line by line."""
    raw = io.BufferedWriter(_LogFile(fd, "w", closefd=False))
    return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)


def note(text: str) -> None:
    """Write a line of the kit to the log, if possible."""
    with contextlib.suppress(OSError):
        os.write(2, f"mosaic_worker: {text}\n".encode(errors="replace"))


def protect_stdin() -> int:
    """Take stdin for requests and return the descriptor to read them from; all others find stdin empty."""
    fd = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    return fd


def journal_for_child(fd: int, environ: Mapping[str, str]) -> ChildJournal:
    """Return the `env` and `pass_fds` with which a subprocess can write events to the same journal."""
    return {"env": {**environ, JOURNAL_FD: str(fd)}, "pass_fds": (fd,)}


def _open_fd(text: str) -> int | None:
    """Return the open descriptor that a text names, or None."""
    try:
        fd = int(text)
        os.fstat(fd)
    except (ValueError, OSError, OverflowError):
        return None
    return fd if fd > 2 else None  # noqa: PLR2004 - 0, 1 and 2 are about to change or are not ours


def _ensure_stderr() -> None:
    """Open /dev/null as stderr if it is closed, so that no other file gets descriptor 2."""
    try:
        os.fstat(2)
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        if null != 2:  # noqa: PLR2004
            os.dup2(null, 2)
            os.close(null)
