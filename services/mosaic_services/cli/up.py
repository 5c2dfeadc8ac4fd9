"""`mosaic up`: run a stack in the foreground or in the background."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.panel import Panel
from rich.table import Table

from mosaic_bus import Bus, BusError
from mosaic_bus.commands import Hosts, PauseQueue, Runs
from mosaic_bus.logs import log_to_stderr
from mosaic_bus.messages import Gpu, RunStateName
from mosaic_bus.wire.address import Address
from mosaic_services.cli.display.output import console, gpu_list, own_tags, print_json, say, size, styled
from mosaic_services.cli.errors import InputError
from mosaic_services.cli.options import current
from mosaic_services.gateway_files import login_url
from mosaic_services.host_config import HostConfig, HostConfigError
from mosaic_services.stack.daemon import start_daemon
from mosaic_services.stack.errors import StackError, StackStoppedError
from mosaic_services.stack.locks import wait_until_free
from mosaic_services.stack.stack import Stack

if TYPE_CHECKING:
    from mosaic_services.home import StackHome
    from mosaic_services.settings.model import StackSettings

__all__ = ["command"]

_HOST_REPORT_TIMEOUT_S = 5.0
_ORPHANS_END_S = 10.0
_DEFAULT_HOST = "local"


def command(
    bind: Annotated[
        str | None,
        typer.Option("--bind", metavar="ADDRESS", help="Listen on tcp://127.0.0.1:PORT instead of the home's sockets."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="What this host offers, in YAML; options override it.",
            show_default=False,
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option("--host", metavar="NAME", help="Name of this host.", show_default=_DEFAULT_HOST)
    ] = None,
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
    gpus: Annotated[
        int | None,
        typer.Option("--gpus", metavar="N", help="GPUs that runs may use.", show_default="those found by NVML"),
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option("--tag", metavar="NAME", help="A tag that runs may require; repeatable.", show_default=False),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="A setting (mosaic config show); repeatable.", show_default=False
        ),
    ] = None,
    paused: Annotated[
        bool, typer.Option("--paused", help="Start nothing of the queue until: mosaic queue resume.")
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Run in the background.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --detach: describe the stack as JSON.")] = False,
    notify_fd: Annotated[int | None, typer.Option("--notify-fd", hidden=True)] = None,
) -> None:
    """Start the services of a stack and keep them alive. Ctrl-C stops them.

    A service that dies is restarted. Nothing is lost, because each service keeps its state on disk.
    """
    if as_json and not detach:
        raise InputError("--json needs --detach: without it, the command runs until Ctrl-C", "add --detach")
    said = {"host": host, "cpus": cpus, "memory_mb": memory_mb, "gpus": gpus, "tags": tag}
    try:
        offer = HostConfig.read(config) if config else HostConfig()
        offer = offer.replaced_by(said, "command line")
    except HostConfigError as error:
        raise InputError(str(error), "an example: configs/stacks/workstation.yaml") from None
    offer = offer.model_copy(update={"host": offer.host or _DEFAULT_HOST})
    loaded = current.load(_parse_settings(setting or []))
    home = current.home
    given = bind or current.bus
    if given:
        Address.parse(given).require_private()
    home.create()
    if detach:
        options = {"config": config and config.absolute(), "host": host, "cpus": cpus, "memory-mb": memory_mb}
        options |= {"gpus": gpus, "bind": given}
        words = [word for name, value in options.items() if value is not None for word in (f"--{name}", str(value))]
        words += [word for each in tag or [] for word in ("--tag", each)]
        words += [word for each in setting or [] for word in ("--set", each)]
        words += ["--paused"] if paused else []
        again = [sys.executable, "-m", "mosaic_services.cli", "up", "--home", str(home.path), *words]
        facts = start_daemon(home, again, (lambda _: None) if as_json else _Reporter(None).step)
        if as_json:
            print_json(facts)
        else:
            _print_panel(facts, detached=True)
        return
    with home.lock("up"):
        address_file = home.path / "bus-address"
        address_file.unlink(missing_ok=True)
        # Services of an `up` that was just killed need a moment to end.
        wait_until_free(home, _ORPHANS_END_S)
        try:
            if given:
                address_file.write_text(given)
            address = given or loaded.settings.bus or f"ipc://{home.sockets}"
            _run(home, address, offer, loaded.settings.stack, _Reporter(notify_fd), paused=paused)
        finally:
            address_file.unlink(missing_ok=True)


def _parse_settings(words: list[str]) -> dict[str, str]:
    """Read KEY=VALUE words. The services get them as environment variables."""
    flags = {}
    for word in words:
        key, given, value = word.partition("=")
        if not given:
            raise InputError(f"{word!r} is not KEY=VALUE", "for example: --set scheduler.lost_after_s=60")
        flags[key] = value
    return flags


class _Reporter:
    """Reports progress to the terminal, or to the process that ran `up --detach`."""

    def __init__(self, notify_fd: int | None) -> None:
        self._fd = notify_fd

    def step(self, name: str) -> None:
        if self._fd is not None:
            self._tell({"step": name})
        else:
            say(("  ✓ ", "green"), name)
            sys.stdout.flush()

    def ready(self, facts: dict[str, Any]) -> None:
        if self._fd is not None:
            self._tell({"ready": facts})
            os.close(self._fd)
            self._fd = None
        else:
            _print_panel(facts, detached=False)

    def failed(self, error: StackError) -> None:
        if self._fd is not None:
            self._tell({"error": error.message, "hint": error.hint, "code": error.code})

    @staticmethod
    def say(line: str) -> None:
        with contextlib.suppress(OSError):  # the terminal may be gone; the stack still has to stop in order
            say((time.strftime("%H:%M:%S  "), "bright_black"), line)
            sys.stdout.flush()

    def _tell(self, document: dict[str, Any]) -> None:
        if self._fd is not None:
            os.write(self._fd, orjson.dumps(document) + b"\n")


def _run(
    home: StackHome, address: str, offer: HostConfig, tuning: StackSettings, reporter: _Reporter, *, paused: bool
) -> None:
    log_to_stderr()
    host = offer.host or _DEFAULT_HOST
    # A copy: a restarted supervisor must not read a file that was edited in between.
    description = home.path / "host.json"
    description.write_bytes(orjson.dumps(offer.model_dump(mode="json", exclude_none=True)))
    stack = Stack(home, address, host, description, tuning, reporter.say)
    try:
        stack.start(reporter.step, _pause if paused else None)
        reporter.ready(_facts(home, address, host))
        stack.keep()
    except StackStoppedError:
        pass
    except StackError as error:
        reporter.failed(error)
        raise
    finally:
        ending = stack.stop()
    reporter.say(ending)


def _pause(bus: Bus) -> None:
    bus.request("scheduler", PauseQueue(paused=True, reason="mosaic up --paused"))


def _facts(home: StackHome, address: str, host: str) -> dict[str, Any]:
    """What the panel shows: addresses and resources."""
    facts: dict[str, Any] = {"home": str(home.path), "address": address, "host": host, "pid": os.getpid()}
    facts["gateway"] = login_url(home)
    if address.startswith("tcp://"):
        facts["warning"] = "any local user can connect to this port: the bus has no keys yet"
    deadline = time.monotonic() + _HOST_REPORT_TIMEOUT_S
    with Bus(Address.parse(address)) as bus:
        while time.monotonic() < deadline:
            try:
                known = bus.request("scheduler", Hosts(), timeout=1.0)
                counts = bus.request("scheduler", Runs(limit=1), timeout=1.0).counts
                facts["runs"] = {state: count for state, count in counts.items() if not RunStateName(state).final}
            except BusError:
                continue
            facts["paused"] = known.paused
            for each in known.hosts:
                if each.host == host:
                    facts["cpus"] = each.total.cpus
                    facts["memory_mb"] = each.total.memory_mb
                    facts["gpus"] = [one.model_dump() for one in each.gpus]
                    facts["tags"] = each.tags
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
    if facts.get("gpus"):
        grid.add_row("GPUs", gpu_list([Gpu.model_validate(each) for each in facts["gpus"]]))
    if tags := own_tags(facts.get("tags", [])):
        grid.add_row("tags", tags)
    installed = [
        name.removesuffix("/default") for name, status in facts.get("workers", {}).items() if status == "installed"
    ]
    available = [
        name.removesuffix("/default") for name, status in facts.get("workers", {}).items() if status != "installed"
    ]
    if installed or available:
        later = [f"{name} (installed on first use)" for name in available]
        grid.add_row("workers", ", ".join([*installed, *later]))
    if runs := facts.get("runs"):
        left = ", ".join(f"{count} {state}" for state, count in runs.items())
        paused = "the queue is paused: mosaic queue resume" if facts.get("paused") is not None else "from before"
        grid.add_row("runs", f"{left}  ({paused})")
    grid.add_row("", "")
    where = "" if detached else "   (in another terminal)"
    grid.add_row("next", styled(("mosaic submit --worker baseline --watch", "bold"), (where, "bright_black")))
    grid.add_row("", styled(("mosaic down", "bold"), " stops it") if detached else "Ctrl-C stops it")
    console().print(Panel.fit(grid, title=styled(("MOSAIC is up", "bold")), title_align="left", border_style="green"))
    if facts.get("gateway"):  # below the panel, where nothing breaks the line
        print(f"gateway: {facts['gateway']}", flush=True)
