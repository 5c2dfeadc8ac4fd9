"""`mosaic stats`: all counters of the services."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mosaic_bus.commands import Hosts, Stats
from mosaic_bus.topics import supervisor
from mosaic_services.cli.output import ago, console, number, print_json, say, table
from mosaic_services.cli.settings import current

if TYPE_CHECKING:
    from mosaic_bus import Bus

__all__ = ["command"]


def command(
    service: Annotated[
        str | None, typer.Argument(help="broker, scheduler, telemetry or supervisor.HOST; all if left out.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show all counters of the services: what was received, published, dropped, repaired."""
    with current.connect() as bus:
        states = [bus.request(name, Stats(), timeout=3.0) for name in _names(bus, service)]
    if as_json:
        print_json({"services": [each.model_dump(mode="json") for each in states]})
        return
    for state in states:
        note = f"  {state.status}: {state.detail}" if state.detail else ""
        say((state.service, "bold"), f"  pid {state.pid}, started {ago(state.started_at)}{note}")
        rows = table("counter", "value", right=("value",))
        rows.show_header = False
        for name, value in sorted(state.counters.items()):
            rows.add_row(f"  {name}", number(value))
        console().print(rows)


def _names(bus: Bus, service: str | None) -> list[str]:
    if service is None:
        hosts = bus.request("scheduler", Hosts()).hosts
        return ["broker", "scheduler", "telemetry", *(supervisor(each.host) for each in hosts)]
    if service == "supervisor":
        return [supervisor(each.host) for each in bus.request("scheduler", Hosts()).hosts]
    return [service]
