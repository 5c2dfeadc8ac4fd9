"""Python files that define experiments. They run in a process of their own: they are a user's code.

A file defines `experiment`, a map as in the YAML file, or `experiments`, a list of them, or, as the original MOSAIC's
scripts do, `operators` and `execution`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

from mosaic_services.experiments.original_scripts import read_original
from mosaic_services.specs import SpecError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["read_python"]

_NAMES = ("experiment", "experiments", "operators", "execution")
_LONGEST_S = 60.0
_LAST_WORDS = 5
# Prints to stderr, so that what the file itself prints does not mix with the answer.
_PROGRAM = """
import json, os, runpy, sys
answer = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
found = runpy.run_path(sys.argv[1])
def plain(value):
    if isinstance(value, (range, set, frozenset, tuple)):
        return list(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "__fspath__"):
        return os.fspath(value)
    raise TypeError(f"{type(value).__name__} is no value of an experiment")
json.dump({name: found[name] for name in sys.argv[2:] if name in found}, answer, default=plain)
answer.close()
"""


def read_python(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Run a file and return its experiments as documents, with notes on what of it has no effect."""
    found = _run(path)
    if "operators" in found:
        return read_original(found["operators"], found.get("execution", {}), path)
    documents = found.get("experiments", [found["experiment"]] if "experiment" in found else [])
    if not isinstance(documents, list) or not documents or not all(isinstance(each, dict) for each in documents):
        raise SpecError(
            f"{path}: the file defines no experiment",
            "define `experiment`, a map with the fields of the YAML file, or `operators` and `execution`",
        )
    return [{str(key): value for key, value in each.items()} for each in documents], []


def _run(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise SpecError(f"{path}: no such file")
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, str(path.resolve()), *_NAMES],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LONGEST_S,
            check=False,
            cwd=path.resolve().parent,
        )
    except subprocess.TimeoutExpired:
        raise SpecError(f"{path}: the file did not end within {_LONGEST_S:g} s", "it must only define values") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        why = lines[-1] if lines else f"exit {done.returncode}"
        raise SpecError(f"{path}: {why}", detail="\n".join(lines[-_LAST_WORDS:]))
    try:
        answer = json.loads(done.stdout)
    except ValueError as error:
        raise SpecError(f"{path}: the file closed its output", detail=str(error)) from error
    return answer if isinstance(answer, dict) else {}
