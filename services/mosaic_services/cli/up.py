"""`mosaic up`: start the stack and keep it alive until Ctrl-C, or leave it in the background."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import Annotated, Any

import orjson
import typer
from rich.panel import Panel
from rich.table import Table

from mosaic_bus import Bus, BusError, Home
from mosaic_bus.commands import Hosts
from mosaic_bus.home import Address
from mosaic_bus.topics import is_host_name
from mosaic_services.cli.daemon import start_daemon
from mosaic_services.cli.errors import CliError, InputError
from mosaic_services.cli.locks import wait_until_free
from mosaic_services.cli.output import console, print_json, say, size, styled
from mosaic_services.cli.settings import current, log_to_stderr
from mosaic_services.cli.stack import Stack, StackStoppedError

__all__ = ["command"]

_HOST_REPORT_TIMEOUT_S = 5.0
_ORPHANS_END_S = 10.0


def command(
    bind: Annotated[
        str | None,
        typer.Option("--bind", metavar="ADDRESS", help="Listen on tcp://127.0.0.1:PORT instead of the home's sockets."),
    ] = None,
    host: Annotated[str, typer.Option("--host", metavar="NAME", help="Name of this host.")] = "local",
    cpus: Annotated[
        float | None,
        typer.Option("--cpus", metavar="N", help="CPUs that runs may use.", show_default="all of this machine"),
    ] = None,
    memory_mb: Annotated[
        int | None,
        typer.Option(
            "--memory-mb", metavar="N", help="Memory that runs may use.", show_default="most of this machine's"
        ),
    ] = None,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Leave it in the background.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --detach: print what was started as JSON.")] = False,
    notify_fd: Annotated[int | None, typer.Option("--notify-fd", hidden=True)] = None,
) -> None:
    """Start the stack: broker, scheduler, telemetry and supervisor. Ctrl-C stops it.

    A service that dies is started again; nothing is lost, because each keeps what it knows on disk.
    """
    if not is_host_name(host):
        raise InputError(f"host name {host!r} is not usable", "take lower-case letters, digits and dashes")
    home = current.home
    given = bind or current.bus
    if given:
        Address.parse(given).require_private()
    limits = [*(["--cpus", f"{cpus:g}"] if cpus else []), *(["--memory-mb", str(memory_mb)] if memory_mb else [])]
    home.create()
    if detach:
        facts = start_daemon(home, ["--host", host, *limits, *(["--bind", given] if given else [])], quiet=as_json)
        if as_json:
            print_json(facts)
        else:
            _print_panel(facts, detached=True)
        return
    with home.lock("up"):
        address_file = home.path / "bus-address"
        address_file.unlink(missing_ok=True)
        # Services of an `up` that was killed a moment ago need that moment to end.
        wait_until_free(home, _ORPHANS_END_S)
        try:
            if given:
                address_file.write_text(given)
            address = given or os.environ.get("MOSAIC_BUS") or f"ipc://{home.sockets}"
            _run(home, address, host, limits, _Reporter(notify_fd))
        finally:
            address_file.unlink(missing_ok=True)


class _Reporter:
    """Tells whoever started us how it goes: a person at a terminal, or the process behind `up --detach`."""

    def __init__(self, notify_fd: int | None) -> None:
        self._fd = notify_fd

    def step(self, name: str) -> None:
        if self._fd is not None:
            self._tell({"step": name})
        else:
            say(("  ✓ ", "green"), name)

    def ready(self, facts: dict[str, Any]) -> None:
        if self._fd is not None:
            self._tell({"ready": facts})
            os.close(self._fd)
            self._fd = None
        else:
            _print_panel(facts, detached=False)

    def failed(self, error: CliError) -> None:
        if self._fd is not None:
            self._tell({"error": error.message, "hint": error.hint, "code": error.code})

    @staticmethod
    def say(line: str) -> None:
        with contextlib.suppress(OSError):  # the terminal may be gone; the stack still has to end in order
            say((time.strftime("%H:%M:%S  "), "bright_black"), line)
            sys.stdout.flush()

    def _tell(self, document: dict[str, Any]) -> None:
        if self._fd is not None:
            os.write(self._fd, orjson.dumps(document) + b"\n")


def _run(home: Home, address: str, host: str, limits: list[str], reporter: _Reporter) -> None:
    log_to_stderr()
    stack = Stack(home, address, host, limits, reporter.say)
    try:
        stack.start(reporter.step)
        reporter.ready(_facts(home, address, host))
        stack.keep()
    except StackStoppedError:
        pass
    except CliError as error:
        reporter.failed(error)
        raise
    finally:
        ending = stack.stop()
    reporter.say(ending)


def _facts(home: Home, address: str, host: str) -> dict[str, Any]:
    """What the panel shows: where it is and what it has."""
    facts: dict[str, Any] = {"home": str(home.path), "address": address, "host": host, "pid": os.getpid()}
    if address.startswith("tcp://"):
        facts["warning"] = "every user of this machine can reach this port: there are no keys yet"
    deadline = time.monotonic() + _HOST_REPORT_TIMEOUT_S
    with Bus(Address.parse(address)) as bus:
        while time.monotonic() < deadline:
            try:
                hosts = bus.request("scheduler", Hosts(), timeout=1.0).hosts
            except BusError:
                continue
            for each in hosts:
                if each.host == host:
                    facts["cpus"] = each.total.cpus
                    facts["memory_mb"] = each.total.memory_mb
                    facts["workers"] = {f"{one.worker}/{one.profile}": one.status for one in each.environments}
                    return facts
            time.sleep(0.05)
    return facts


def _print_panel(facts: dict[str, Any], *, detached: bool) -> None:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bright_black")
    grid.add_column(overflow="fold")
    grid.add_row("home", facts["home"])
    grid.add_row("bus", facts["address"])
    if "warning" in facts:
        grid.add_row("", styled((f"warning: {facts['warning']}", "yellow")))
    resources = f"{facts['cpus']:g} CPUs, {size(facts['memory_mb'])}" if "cpus" in facts else "has not reported yet"
    grid.add_row("host", f"{facts['host']}  ({resources})")
    installed = [
        name.removesuffix("/default") for name, status in facts.get("workers", {}).items() if status == "installed"
    ]
    available = [
        name.removesuffix("/default") for name, status in facts.get("workers", {}).items() if status != "installed"
    ]
    if installed or available:
        later = [f"{name} (installed when first used)" for name in available]
        grid.add_row("workers", ", ".join([*installed, *later]))
    grid.add_row("", "")
    where = "" if detached else "   (in another terminal)"
    grid.add_row("next", styled(("mosaic submit --worker baseline --watch", "bold"), (where, "bright_black")))
    grid.add_row("", styled(("mosaic down", "bold"), " stops it") if detached else "Ctrl-C stops it")
    console().print(Panel.fit(grid, title=styled(("MOSAIC is up", "bold")), title_align="left", border_style="green"))
