"""The command line: `python -m cleanrl_worker.cli --config worker.json`."""

from collections.abc import Sequence
from typing import Any, NoReturn

from cleanrl_worker import get_worker_metadata
from cleanrl_worker.config import CleanRLWorkerConfig
from mosaic_worker.cli import run_worker
from mosaic_worker.context import Resume, RunContext
from mosaic_worker.interactive import InteractiveWorker

__all__ = ["main"]


def _run(context: RunContext[CleanRLWorkerConfig]) -> None:
    from cleanrl_worker.runtime import CleanRLWorkerRuntime  # noqa: PLC0415 - imported once stdout is protected

    CleanRLWorkerRuntime(context).run()


def _preflight(config: CleanRLWorkerConfig, resume: Resume | None) -> dict[str, Any]:
    from cleanrl_worker.runtime import preflight  # noqa: PLC0415 - as above

    return preflight(config, resume)


def _interactive(context: RunContext[CleanRLWorkerConfig]) -> InteractiveWorker:
    from cleanrl_worker.interactive import CleanRLInteractive  # noqa: PLC0415 - as above

    return CleanRLInteractive(context)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the worker and end the process."""
    run_worker(get_worker_metadata(), run=_run, interactive=_interactive, preflight=_preflight, argv=argv)


if __name__ == "__main__":
    main()
