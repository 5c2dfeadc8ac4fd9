"""The command line: `python -m ray_worker.cli --config worker.json`."""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from mosaic_worker.cli import run_worker
from mosaic_worker.context import Resume, RunContext
from mosaic_worker.interactive import InteractiveWorker
from ray_worker import get_worker_metadata
from ray_worker.config import RayWorkerConfig

__all__ = ["main"]


def _run(context: RunContext[RayWorkerConfig]) -> None:
    from ray_worker.runtime import run  # noqa: PLC0415 - imported once stdout is protected

    run(context)


def _preflight(config: RayWorkerConfig, resume: Resume | None) -> Mapping[str, Any]:
    from ray_worker.runtime import preflight  # noqa: PLC0415 - as above

    return preflight(config, resume)


def _interactive(context: RunContext[RayWorkerConfig]) -> InteractiveWorker:
    from ray_worker.interactive import RayInteractive  # noqa: PLC0415 - as above

    return RayInteractive(context)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the worker and end the process."""
    run_worker(get_worker_metadata(), run=_run, interactive=_interactive, preflight=_preflight, argv=argv)


if __name__ == "__main__":
    main()
