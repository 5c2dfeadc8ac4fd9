"""`python -m mosaic_worker.check NAME [--json]`, inside the worker's environment."""

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from mosaic_worker.check.report import Result, as_json, as_text, passed, totals
from mosaic_worker.check.suite import CHECKS, run_suite

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the suite, print the results, and return 0 if no check failed."""
    parser = argparse.ArgumentParser(
        prog="python -m mosaic_worker.check", description="Check a worker of this environment"
    )
    parser.add_argument("name", help="the worker's name, as in its entry point")
    parser.add_argument("--json", action="store_true", help="print the results as one JSON object")
    parser.add_argument(
        "--timeout", type=float, default=120.0, metavar="SECONDS", help="for each process (default 120)"
    )
    parser.add_argument(
        "--only", action="append", default=[], choices=[check[0] for check in CHECKS], help="run only this check"
    )
    arguments = parser.parse_args(argv)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    results = run_suite(
        arguments.name, arguments.timeout, (lambda _: None) if arguments.json else _show, arguments.only
    )
    print(json.dumps(as_json(arguments.name, results)) if arguments.json else totals(arguments.name, results))
    return 0 if passed(results) else 1


def _stop(number: int, _frame: object) -> NoReturn:
    """End after workers and folders are cleaned up; further signals are ignored."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _show(result: Result) -> None:
    print(as_text(result), flush=True)


if __name__ == "__main__":
    sys.exit(main())
