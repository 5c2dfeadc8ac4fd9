"""Finds the workers of this environment: `python -m mosaic_worker.discover [NAME]` prints them as JSON.

A worker is an installed package with an entry point in the group `mosaic.workers` that names a function returning its
WorkerMetadata. A worker that cannot be loaded is listed with its error.
"""

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from mosaic_worker.encoding import encode
from mosaic_worker.errors import WorkerError
from mosaic_worker.metadata import WorkerMetadata
from mosaic_worker.stdout import protect_stdout

__all__ = ["GROUP", "describe_all", "find", "load", "main"]

GROUP = "mosaic.workers"


def find(name: str | None = None) -> list[EntryPoint]:
    """List the entry points of workers, all or those with a name, in order of their names."""
    found = entry_points(group=GROUP) if name is None else entry_points(group=GROUP, name=name)
    return sorted(found, key=lambda point: point.name)


def load(point: EntryPoint) -> WorkerMetadata:
    """Import a worker and return its metadata; raise WorkerError if it returns something else."""
    metadata = point.load()()
    if not isinstance(metadata, WorkerMetadata):
        raise WorkerError(f"{point.value} returned {type(metadata).__name__}, not WorkerMetadata")
    if metadata.name != point.name:
        raise WorkerError(f"the entry point is named {point.name!r} but the metadata says {metadata.name!r}")
    return metadata


def describe_all(name: str | None = None) -> dict[str, dict[str, Any]]:
    """Describe the workers of this environment by name."""
    return {point.name: _describe(point) for point in find(name)}


def _describe(point: EntryPoint) -> dict[str, Any]:
    card: dict[str, Any] = {"module": point.module.partition(".")[0]}
    try:
        return {**card, **load(point).describe()}
    except Exception as error:
        traceback.print_exc()
        return {**card, "error": f"{type(error).__name__}: {error}"}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the workers as one JSON object; exit 1 if the requested worker is missing or cannot be loaded."""
    parser = argparse.ArgumentParser(
        prog="python -m mosaic_worker.discover", description="List this environment's workers"
    )
    parser.add_argument("name", nargs="?", help="only this worker")
    name = parser.parse_args(argv).name
    journal = protect_stdout(os.environ)
    found = describe_all(name)
    line = encode(found) + b"\n"
    while line:
        line = line[os.write(journal, line) :]
    if name is None:
        return 0
    if name not in found:
        known = ", ".join(point.name for point in find()) or "none"
        print(f"no worker {name!r} in this environment; there are: {known}", file=sys.stderr)
    return 0 if name in found and "error" not in found[name] else 1


if __name__ == "__main__":
    sys.exit(main())
