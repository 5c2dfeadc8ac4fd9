"""The command line: `python -m baseline_worker.cli --config worker.json`."""

from collections.abc import Sequence
from typing import NoReturn

from baseline_worker import get_worker_metadata
from baseline_worker.config import BaselineConfig
from mosaic_worker.cli import run_worker
from mosaic_worker.context import RunContext
from mosaic_worker.interactive import InteractiveWorker

__all__ = ["main"]


def _run(context: RunContext[BaselineConfig]) -> None:
    from baseline_worker.runtime import run  # noqa: PLC0415 - the library is imported once stdout is protected

    run(context)


def _interactive(context: RunContext[BaselineConfig]) -> InteractiveWorker:
    from baseline_worker.runtime import BaselineInteractive  # noqa: PLC0415

    return BaselineInteractive(context)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the worker and end the process."""
    run_worker(get_worker_metadata(), run=_run, interactive=_interactive, argv=argv)


if __name__ == "__main__":
    main()
