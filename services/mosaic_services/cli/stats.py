"""`mosaic stats`: all counters of the services."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from mosaic_bus.commands import HostList, Hosts, Stats
from mosaic_bus.errors import NoAnswerError
from mosaic_services.cli.display.output import ago, console, number, print_json, say, table
from mosaic_services.cli.errors import NoStackError
from mosaic_services.cli.options import current
from mosaic_services.cli.status import service_names
from mosaic_services.stack.services import SERVICES, describe

if TYPE_CHECKING:
    from mosaic_bus import Bus
    from mosaic_bus.messages import ServiceState

__all__ = ["command"]

_ANSWER_S = 3.0


def command(
    service: Annotated[str | None, typer.Argument(help=f"One of {describe()}.", show_default="all")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show all counters of the services: messages received, published, dropped, repaired.

    Exit code 3 if a service does not answer.
    """
    states: list[ServiceState] = []
    silent: list[str] = []
    with current.connect() as bus:
        for name in _names(bus, service):
            try:
                states.append(bus.request(name, Stats(), timeout=_ANSWER_S))
            except NoAnswerError:
                silent.append(name)
    if as_json:
        print_json({"services": [each.model_dump(mode="json") for each in states], "silent": silent})
    else:
        _print(states)
    if silent:
        verb = "does" if len(silent) == 1 else "do"
        ours = {row.name for row in SERVICES}.issuperset(each.partition(".")[0] for each in silent)
        hint = "see: mosaic status, and logs/ in the home" if ours else f"the services of a stack are {describe()}"
        raise NoStackError(f"{', '.join(silent)} {verb} not answer", hint)


def _print(states: list[ServiceState]) -> None:
    for state in states:
        note = f"  {state.status}: {state.detail}" if state.detail else ""
        say((state.service, "bold"), f"  pid {state.pid}, started {ago(state.started_at)}{note}")
        rows = table("counter", "value", right=("value",))
        rows.show_header = False
        for name, value in sorted(state.counters.items()):
            rows.add_row(f"  {name}", number(value))
        console().print(rows)


def _names(bus: Bus, service: str | None) -> list[str]:
    per_host = {row.name for row in SERVICES if row.per_host}
    if service is not None and service not in per_host:
        return [service]
    hosts = HostList(hosts=[], silent_s={})
    with contextlib.suppress(NoAnswerError):
        hosts = bus.request("scheduler", Hosts(), timeout=_ANSWER_S)
    return [name for name in service_names(hosts) if service is None or name.startswith(f"{service}.")]
