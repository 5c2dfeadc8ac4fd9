"""Python imports this at start-up, because `run_hooked` puts this folder on PYTHONPATH. It sets the hooks.

A `sitecustomize` that this one shadows still runs.
"""

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

from mosaic_worker.hooks.settings import VARIABLE


def _run_shadowed() -> None:
    here = Path(__file__).resolve().parent
    elsewhere = [entry for entry in sys.path if Path(entry).resolve() != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if VARIABLE in os.environ:
    from mosaic_worker.hooks.patches import install

    install()
_run_shadowed()
