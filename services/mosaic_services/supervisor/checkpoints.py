"""Finds the last checkpoint in a journal, searching from its end."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from mosaic_bus.messages import Checkpoint
from mosaic_worker.events import Kind, read_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["last_checkpoint"]

_EVENT = Kind.CHECKPOINT_SAVED.encode()
# Bytes of journal that are searched. Reading more would delay the next attempt for longer than it is worth.
_SEARCHED_BYTES = 256 * 1024 * 1024
_BLOCK_BYTES = 1024 * 1024
# Bytes kept of a line that spans blocks. Events are shorter; the head of a longer line is no valid JSON.
_LONGEST_LINE = 1024 * 1024


def last_checkpoint(
    journal: Path, folder: Path, searched_bytes: int = _SEARCHED_BYTES, block_bytes: int = _BLOCK_BYTES
) -> Checkpoint | None:
    """Return the newest checkpoint that was saved and still exists; its path is relative to the attempt's folder."""
    for line in _lines_backwards(journal, searched_bytes, block_bytes):
        found = _parse(line)
        if found is not None:
            path = str(folder / found.path)
            if os.path.exists(path):  # noqa: PTH110 - Path.exists raises for what no file can be called
                return Checkpoint(path=path, step=found.step)
    return None


def _lines_backwards(journal: Path, searched_bytes: int, block_bytes: int) -> Iterator[bytes]:
    """Yield the lines that mention a checkpoint, last one first."""
    try:
        file = journal.open("rb")
    except FileNotFoundError:
        return
    with file:
        end = file.seek(0, os.SEEK_END)
        floor = max(0, end - searched_bytes)
        rest = b""
        while end > floor:
            start = max(floor, end - block_bytes)
            file.seek(start)
            block = file.read(end - start) + rest
            # The first line of a block begins in the preceding block, which is read next.
            first = 0 if start == 0 else block.find(b"\n") + 1 or len(block)
            rest = block[: min(first, _LONGEST_LINE)]
            yield from _candidates(block[first:])
            end = start


def _candidates(block: bytes) -> Iterator[bytes]:
    at = len(block)
    while (at := block.rfind(_EVENT, 0, at)) >= 0:
        begin, end = block.rfind(b"\n", 0, at) + 1, block.find(b"\n", at)
        yield block[begin : end if end >= 0 else len(block)]
        at = begin


def _parse(line: bytes) -> Checkpoint | None:
    event = read_line(line)
    if event.kind != Kind.CHECKPOINT_SAVED or event.path is None:
        return None
    # Without a valid step, the worker takes it from the file.
    return Checkpoint(path=event.path, step=event.step if event.step is not None and event.step >= 0 else None)
