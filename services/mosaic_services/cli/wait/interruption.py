"""Ctrl-C while a command waits for, watches or films runs."""

from __future__ import annotations

import contextlib
import signal
import threading
from typing import TYPE_CHECKING

from mosaic_services.cli.errors import INTERRUPTED, CliError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["interrupted", "runs_go_on"]


@contextlib.contextmanager
def runs_go_on(stop: str, watch: str) -> Iterator[None]:
    """On Ctrl-C, exit with 130 and say how to stop and watch the runs."""
    try:
        yield
    except KeyboardInterrupt:
        hint = f"stop with: mosaic {stop}\nwatch with: mosaic {watch}"
        raise CliError("interrupted; what was submitted goes on", hint, code=INTERRUPTED) from None


@contextlib.contextmanager
def interrupted() -> Iterator[threading.Event]:
    """Turn Ctrl-C into an event: an exception could be raised, and swallowed, anywhere."""
    event = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: event.set())
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)
