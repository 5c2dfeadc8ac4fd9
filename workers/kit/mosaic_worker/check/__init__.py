"""The compliance suite: starts a worker as the platform would and checks its behaviour.

`python -m mosaic_worker.check NAME` inside the worker's environment; exit code 0 if nothing failed.
"""

from mosaic_worker.check.report import Result
from mosaic_worker.check.suite import run_suite

__all__ = ["Result", "run_suite"]
