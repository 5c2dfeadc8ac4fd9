"""The command line."""

from typing import Any, NoReturn

from mosaic_worker.cli import run_worker
from mosaic_worker.context import RunContext
from torch_worker import get_worker_metadata
from torch_worker.config import TorchConfig


def run(context: RunContext[TorchConfig]) -> dict[str, Any]:
    """Import the library when it is needed, and not before."""
    from torch_worker import runtime

    return runtime.run(context)


def main() -> NoReturn:
    """Entry point."""
    run_worker(get_worker_metadata(), run=run)


if __name__ == "__main__":
    main()
