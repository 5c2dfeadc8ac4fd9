"""`mosaic status`: an overview of services, hosts and the queue."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer
from rich.text import Text

from mosaic_bus.commands import HostList, Hosts, Runs, Stats
from mosaic_bus.errors import BusError
from mosaic_bus.messages import AttemptPhase, HostState, RunStateName, ServiceState
from mosaic_services.cli.display.output import (
    console,
    duration,
    gpu_list,
    own_tags,
    print_json,
    say,
    size,
    state_text,
    styled,
    table,
)
from mosaic_services.cli.errors import NO_STACK
from mosaic_services.cli.options import current
from mosaic_services.stack.locks import holder
from mosaic_services.stack.services import bus_names

if TYPE_CHECKING:
    from mosaic_bus import Bus

__all__ = ["command", "service_names"]

_ANSWER_S = 1.5
_COUNTERS = ("received", "published", "dropped", "repaired")
_SILENT_AFTER_S = 5.0


@dataclass
class _Seen:
    service: str
    state: ServiceState | None

    @property
    def status(self) -> str:
        if self.state is None:
            return "silent"
        return "up" if self.state.status == "ok" else self.state.status


def command(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Show services, hosts and the number of runs by state. Exit code 3 if a service does not answer."""
    with current.connect() as bus:
        hosts, counts = HostList(hosts=[], silent_s={}), dict[str, int]()
        with contextlib.suppress(BusError):
            hosts = bus.request("scheduler", Hosts(), timeout=_ANSWER_S)
            found = bus.request("scheduler", Runs(limit=1), timeout=_ANSWER_S).counts
            counts = {str(state): found[state] for state in RunStateName if state in found}
        services = [_ask(bus, name) for name in service_names(hosts)]
    if as_json:
        print_json(_document(services, hosts, counts))
    else:
        _print(services, hosts, counts)
    if any(each.state is None for each in services):
        raise typer.Exit(NO_STACK)


def service_names(hosts: HostList) -> list[str]:
    """Names of all services, including those of this host, which may not have reported since the stack started."""
    names = {each.host: None for each in hosts.hosts}
    home = current.home
    # `mosaic up` writes host.json, and holds its lock while the stack runs.
    if current.address == home.address() and holder(home.path / "up.lock") is not None:
        with contextlib.suppress(OSError, orjson.JSONDecodeError, KeyError):
            names[str(orjson.loads((home.path / "host.json").read_bytes())["host"])] = None
    return bus_names(names)


def _ask(bus: Bus, name: str) -> _Seen:
    with contextlib.suppress(BusError):
        return _Seen(name, bus.request(name, Stats(), timeout=_ANSWER_S))
    return _Seen(name, None)


def _document(services: list[_Seen], hosts: HostList, counts: dict[str, int]) -> dict[str, Any]:
    return {
        "home": str(current.home.path),
        "address": str(current.address),
        "services": [
            {
                "service": each.service,
                "answer": each.status,
                **(each.state.model_dump(mode="json") if each.state else {}),
            }
            for each in services
        ],
        "hosts": [{**each.model_dump(mode="json"), "silent_s": hosts.silent_s.get(each.host)} for each in hosts.hosts],
        "runs": counts,
    }


_STYLES = {"up": "green", "degraded": "yellow", "stopping": "yellow", "silent": "bold red"}


def _print(services: list[_Seen], hosts: HostList, counts: dict[str, int]) -> None:
    dim = "bright_black"
    say(("home ", dim), str(current.home.path), ("   bus ", dim), f"{current.address}\n")
    # The column for remarks takes room from the others, so it is there only if there are any.
    remarks = [""] if any(each.state is None or each.state.detail for each in services) else []
    rows = table("service", "state", "pid", "up for", *_COUNTERS, *remarks, right=("pid", *_COUNTERS))
    now = time.time()
    for each in services:
        style = _STYLES[each.status]
        if each.state is None:
            rows.add_row(each.service, styled(("silent", style)), *[""] * 6, "does not answer; see its log")
            continue
        rows.add_row(
            each.service,
            styled((each.status, style)),
            str(each.state.pid),
            duration(now - each.state.started_at),
            *(_count(each.state, name) for name in _COUNTERS),
            *([each.state.detail] if remarks else []),
        )
    console().print(rows)
    for host in hosts.hosts:
        console().print()
        _print_host(host, hosts.silent_s.get(host.host, 0.0))
    if not hosts.hosts:
        say(("\nno host has reported yet", "yellow"))
    parts = [state_text(name).append(f" {count}", style="default") for name, count in counts.items()]
    say(("\nruns   ", dim), Text(" · ").join(parts) if parts else "none yet")


def _count(state: ServiceState, name: str) -> str:
    if state.service == "broker":
        name = f"forward_{name}" if f"forward_{name}" in state.counters else name
    value = state.counters.get(name)
    return "" if value is None else f"{value:,.0f}"


def _print_host(host: HostState, silent: float) -> None:
    active = [each for each in host.attempts if each.phase is not AttemptPhase.ENDED]
    cpus = sum(each.resources.cpus for each in active)
    memory = size(sum(each.resources.memory_mb for each in active))
    quiet = f"   silent for {duration(silent)}" if silent > _SILENT_AFTER_S else ""
    running = f"{len(active)} run" + ("" if len(active) == 1 else "s")
    taken = sum(sum(each.gpus.values()) for each in active)
    total = host.total
    gpus = f", {taken:g} of {total.gpus:g} GPUs" if host.gpus else ""
    given = f"   {running}   allocated: {cpus:g} of {total.cpus:g} CPUs, {memory} of {size(total.memory_mb)}{gpus}"
    machine = f"   machine: {host.cpu_percent:.0f} % busy, {size(host.memory_used_mb)} used"
    fits = len(host.host + given + machine + quiet) <= console().width
    say((host.host, "bold"), given, "" if fits else "\n", machine, (quiet, "bold red"))
    if host.gpus:
        say(f"  GPUs  {gpu_list(host.gpus)}")
    if tags := own_tags(host.tags):
        say(f"  tags  {tags}")
    for each in host.environments:
        profile = "" if each.profile == "default" else f"/{each.profile}"
        style = {"installed": "green", "building": "cyan", "broken": "red"}.get(each.status, "bright_black")
        text = {"available": "available, installed on first use"}.get(each.status, str(each.status))
        detail = f": {each.detail}" if each.detail else ""
        say(f"  {each.worker}{profile}  ", (text, style), detail)
