"""`mosaic down`: stop the stack and wait until all its processes are gone."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from mosaic_bus.commands import Detach, Hosts
from mosaic_bus.errors import BusError
from mosaic_services.cli.display.output import print_json
from mosaic_services.cli.errors import CliError, NoStackError
from mosaic_services.cli.options import current
from mosaic_services.stack.leftovers import alive, unended
from mosaic_services.stack.locks import holder, wait_until_free
from mosaic_services.stack.services import SERVICES
from mosaic_services.stack.stack import KEEP_RUNS

if TYPE_CHECKING:
    from pathlib import Path

    from mosaic_bus import Bus
    from mosaic_services.home import StackHome

__all__ = ["command"]

# Services that lost their `up` end within a few seconds; also the silence after which a host counts as gone.
_LINGER_S = 15.0
# Time beyond the longest grace period.
_PATIENCE_S = 60.0


def command(
    keep_runs: Annotated[
        bool, typer.Option("--keep-runs", help="Leave the runs running; the next `mosaic up` adopts them.")
    ] = False,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            help="Stop waiting after this time.",
            show_default="the longest grace period of a run plus a minute",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Stop the stack of this home and its runs. Does nothing if no stack runs."""
    home = current.home
    lock = home.path / "up.lock"
    pid = holder(lock)

    def say(line: str) -> None:
        if not as_json:
            print(line, flush=True)

    left: dict[str, int] = {}
    if pid is None:
        _wait_for_orphans(home)
        left = alive(home)
        if left:
            say(f"no stack is running in {home.path}, but these runs are: {', '.join(sorted(left))}")
            say("mosaic up adopts them; then mosaic down stops them")
        else:
            say(f"nothing is running in {home.path}")
    else:
        kept = _detach() if keep_runs else []
        for name in kept:
            say(f"{name} leaves its runs running")
        say(f"stopping the stack (pid {pid})…")
        patience = _PATIENCE_S + max((each.grace_s() for each in unended(home)), default=0.0)
        _end(pid, lock, KEEP_RUNS if keep_runs else signal.SIGTERM, patience if timeout is None else timeout)
        _wait_for_orphans(home)
        say("stopped")
    if as_json:
        runs = {"runs": sorted(left)} if left else {}
        print_json({"stopped": pid is not None, "pid": pid, "home": str(home.path), **runs})


def _detach() -> list[str]:
    """Tell all supervisors to leave their runs when they end; return the names of those that answered.

    A supervisor that does not answer is no error: `mosaic up` signals its own supervisor without the bus.
    """
    told = []
    try:
        with current.connect() as bus:
            for name in (row.bus_name(host) for row in SERVICES if row.holds_runs for host in _hosts(bus)):
                try:
                    bus.request(name, Detach(), timeout=5.0)
                except BusError as error:
                    _warn(f"{name} could not be told to leave its runs running: {error}")
                else:
                    told.append(name)
    except (BusError, NoStackError) as error:
        _warn(f"supervisors of other hosts could not be told to leave their runs running: {error}")
    return told


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


def _hosts(bus: Bus) -> list[str]:
    answer = bus.request("scheduler", Hosts(), timeout=5.0)
    return [each.host for each in answer.hosts if answer.silent_s.get(each.host, 0.0) < _LINGER_S]


def _end(pid: int, lock: Path, number: int, timeout: float) -> None:
    """Signal a process and wait for its end, by a pidfd: the pid may be reused."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        if holder(lock) != pid:
            return
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, number)
        if not select.select([process], [], [], timeout)[0]:
            raise CliError(
                f"the stack (pid {pid}) did not end within {timeout:g} s", "see logs/ in the home, or: kill -9"
            )
    finally:
        os.close(process)


def _wait_for_orphans(home: StackHome) -> None:
    """Wait for services whose `up` died; they are about to end."""
    if left := wait_until_free(home, _LINGER_S):
        who = ", ".join(f"{name} (pid {pid})" for name, pid in left.items())
        raise CliError(f"still running in {home.path}, not started by mosaic up: {who}", "stop them with: kill PID")
