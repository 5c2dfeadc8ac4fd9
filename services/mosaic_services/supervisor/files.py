"""The files of runs on this host: lists, reads, measures and removes them, and never follows a link."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import shutil
import stat
from typing import TYPE_CHECKING

from mosaic_bus.commands import FileChunk, FileEntry, FilesResult
from mosaic_bus.errors import CommandRefusedError
from mosaic_bus.refusals import RefusalCode, RefusalDetails, brief
from mosaic_services.attempt_folder import layout
from mosaic_services.masking import blank, longest_form, secrets_in
from mosaic_services.open_below import open_below, parts_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mosaic_bus.commands import Files, ReadFile
    from mosaic_services.home import StackHome

__all__ = ["disk_use", "list_files", "read_file", "remove"]

# They hold the config, in which there may be secrets. `show` has it.
_WITH_CONFIG = frozenset({layout.PLACED, layout.WORKER})
_DEEPEST = 32


def list_files(home: StackHome, command: Files) -> FilesResult:
    """List the files below a run's folder, without links."""
    root = _folder(home, command.run)
    found: list[FileEntry] = []
    for path, status in _walk(root):
        if len(found) == command.limit:
            return FilesResult(files=found, more=True)
        name = os.fsencode(os.path.relpath(path, root)).decode("utf-8", "backslashreplace")
        if os.path.basename(name) not in _WITH_CONFIG:  # noqa: PTH119 - a text
            found.append(FileEntry(path=name, bytes=status.st_size, modified_at=status.st_mtime))
    return FilesResult(files=found)


def read_file(home: StackHome, command: ReadFile) -> FileChunk:
    """Read a part of a regular file below a run's folder, with `*` in the place of the secrets of its config."""
    _folder(home, command.run)
    try:
        parts = parts_of(command.path)
        if parts[-1] in _WITH_CONFIG:
            raise _unknown(command)
        with open_below(home.runs, [command.run, *parts]) as file:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise _unknown(command)
            data = _read_blanked(file, command, _secrets_of(home.runs / command.run / parts[0]))
    except (OSError, ValueError) as error:
        raise _unknown(command) from error
    return FileChunk(data=base64.b64encode(data), bytes=status.st_size, modified_at=status.st_mtime)


def _secrets_of(attempt: Path) -> list[str]:
    """Return the secrets in the configuration of an attempt: its worker may have written them to any file."""
    try:
        return secrets_in(json.loads((attempt / layout.PLACED).read_bytes()))
    except (OSError, ValueError):
        return []


def _read_blanked(file: int, command: ReadFile, secrets: list[str]) -> bytes:
    """Read with a margin on both sides, so that a secret is found that lies across an edge."""
    margin = longest_form(secrets)
    start = max(0, command.start - margin)
    data = blank(os.pread(file, command.start - start + command.limit + margin, start), secrets)
    return data[command.start - start :][: command.limit]


def disk_use(home: StackHome, runs: list[str]) -> dict[str, int]:
    """Return the bytes that the folders of runs take; sparse files count what is on disk."""
    found = {}
    for run in runs:
        if (home.runs / run).is_dir():
            found[run] = sum(status.st_blocks * 512 for _, status in _walk(home.runs / run))
    return found


def remove(home: StackHome, run: str) -> None:
    """Delete the folder of a run that has ended."""
    if any(note.stem == run for note in (home.path / "active").glob(f"{run}.*")):
        said = f"run {run} has not ended here, or its last lines are not stored yet: try again later"
        raise CommandRefusedError(RefusalCode.NOT_FINAL, said, RefusalDetails(run=run))
    folder = home.runs / run
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)


def _folder(home: StackHome, run: str) -> Path:
    folder = home.runs / run
    if folder.is_symlink() or not folder.is_dir():
        said = f"this host has no files of run {run}"
        raise CommandRefusedError(RefusalCode.UNKNOWN_RUN, said, RefusalDetails(value=run))
    return folder


def _unknown(command: ReadFile) -> CommandRefusedError:
    said = f"run {command.run} has no file {command.path!r} that may be read: see the command files"
    return CommandRefusedError(RefusalCode.UNKNOWN_FILE, said, RefusalDetails(value=brief(command.path)))


def _walk(folder: Path, depth: int = 0) -> Iterator[tuple[str, os.stat_result]]:
    """Yield regular files in the order of their paths."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:  # removed meanwhile, or not ours
        return
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False) and depth < _DEEPEST:
                yield from _walk(entry, depth + 1)  # type: ignore[arg-type]
            elif entry.is_file(follow_symlinks=False):
                yield entry.path, entry.stat(follow_symlinks=False)
        except OSError:
            continue
