"""The command line: `python -m xuance_worker.cli --config worker.json`."""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from mosaic_worker.cli import run_worker
from mosaic_worker.context import Resume, RunContext
from mosaic_worker.interactive import InteractiveWorker
from xuance_worker import get_worker_metadata
from xuance_worker.config import XuanCeWorkerConfig

__all__ = ["main"]


def _run(context: RunContext[XuanCeWorkerConfig]) -> None:
    from xuance_worker.runtime import run  # noqa: PLC0415 - imported once stdout is protected

    run(context)


def _preflight(config: XuanCeWorkerConfig, resume: Resume | None) -> Mapping[str, Any]:
    from xuance_worker.runtime import preflight  # noqa: PLC0415 - as above

    return preflight(config, resume)


def _interactive(context: RunContext[XuanCeWorkerConfig]) -> InteractiveWorker:
    from xuance_worker.interactive import XuanCeInteractive  # noqa: PLC0415 - as above

    return XuanCeInteractive(context)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the worker and end the process."""
    run_worker(get_worker_metadata(), run=_run, interactive=_interactive, preflight=_preflight, argv=argv)


if __name__ == "__main__":
    main()
