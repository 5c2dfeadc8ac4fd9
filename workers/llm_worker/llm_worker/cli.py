"""The command line: `python -m llm_worker.cli --config worker.json`."""

from collections.abc import Sequence
from typing import Any, NoReturn

from llm_worker import get_worker_metadata
from llm_worker.config import LlmConfig
from mosaic_worker.cli import run_worker
from mosaic_worker.context import RunContext
from mosaic_worker.interactive import InteractiveWorker

__all__ = ["main"]


def _run(context: RunContext[LlmConfig]) -> dict[str, Any]:
    from llm_worker.runtime import run  # noqa: PLC0415 - the library is imported once stdout is protected

    return run(context)


def _interactive(context: RunContext[LlmConfig]) -> InteractiveWorker:
    from llm_worker.operator import LlmOperator  # noqa: PLC0415

    return LlmOperator(context)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the worker and end the process."""
    run_worker(get_worker_metadata(), run=_run, interactive=_interactive, argv=argv)


if __name__ == "__main__":
    main()
