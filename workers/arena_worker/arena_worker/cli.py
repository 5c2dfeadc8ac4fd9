"""The command line: `python -m arena_worker.cli --config worker.json`."""

from collections.abc import Sequence
from typing import Any, NoReturn

from arena_worker import get_worker_metadata
from arena_worker.config import ArenaConfig
from mosaic_worker.cli import run_worker
from mosaic_worker.context import Resume, RunContext
from mosaic_worker.interactive import InteractiveWorker

__all__ = ["main"]


def _run(context: RunContext[ArenaConfig]) -> dict[str, Any]:
    from arena_worker.runtime import run  # noqa: PLC0415 - the library is imported once stdout is protected

    return run(context)


def _preflight(config: ArenaConfig, _resume: Resume | None) -> dict[str, Any]:
    from arena_worker.runtime import preflight  # noqa: PLC0415 - as above

    return preflight(config)


def _interactive(context: RunContext[ArenaConfig]) -> InteractiveWorker:
    from arena_worker.manual import ManualArena  # noqa: PLC0415 - as above

    return ManualArena(context)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the worker and end the process."""
    run_worker(get_worker_metadata(), run=_run, interactive=_interactive, argv=argv, preflight=_preflight)


if __name__ == "__main__":
    main()
