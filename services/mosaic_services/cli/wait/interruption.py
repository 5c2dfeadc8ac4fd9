"""Ctrl-C while a command waits for runs: they go on, and the user is told so."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from mosaic_services.cli.errors import INTERRUPTED, CliError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["runs_go_on"]


@contextlib.contextmanager
def runs_go_on(stop: str, watch: str) -> Iterator[None]:
    """End with exit code 130, and say how the runs are stopped and watched."""
    try:
        yield
    except KeyboardInterrupt:
        hint = f"stop with: mosaic {stop}\nwatch with: mosaic {watch}"
        raise CliError("interrupted; what was submitted goes on", hint, code=INTERRUPTED) from None
