"""The table of services. `up`, `down`, `status`, `stats`, the import rules and the docs are made from it.

Only the standard library is imported here, so that scripts can read the table without the packages of a stack.
"""

from __future__ import annotations

from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["PER_STACK", "SERVICES", "ServiceRow", "bus_names", "describe", "in_start_order"]


@dataclass(frozen=True)
class ServiceRow:
    """One service: a package `mosaic_services.<name>` that runs as a process of its own."""

    name: str
    purpose: str
    # Services that it talks to. They are started before it and stopped after it.
    needs: tuple[str, ...] = ()
    # Arguments besides --home and --bus; {host_config} is the file that describes this host.
    arguments: tuple[str, ...] = ()
    # Whether every host has one, called <name>.<host> on the bus; otherwise a stack has one, called <name>.
    per_host: bool = False
    # Whether it answers questions about a stopped stack from its store, and does nothing else there.
    answers_alone: bool = False
    # Whether stopping it stops the runs of its host, which takes as long as their grace periods; SIGUSR2 makes it
    # end and leave them running.
    holds_runs: bool = False

    @property
    def module(self) -> str:
        """What `python -m` starts."""
        return f"mosaic_services.{self.name}"

    def bus_name(self, host: str) -> str:
        """Its name on the bus."""
        return f"{self.name}.{host}" if self.per_host else self.name


SERVICES = (
    ServiceRow("broker", "forwards every message", answers_alone=True),
    ServiceRow("scheduler", "queues runs and places them on hosts", needs=("broker",), answers_alone=True),
    ServiceRow("telemetry", "stores events and logs, answers queries", needs=("broker",), answers_alone=True),
    ServiceRow(
        "operator",
        "plays experiments: cuts them into shards, collects their records",
        needs=("broker", "scheduler", "telemetry"),
    ),
    ServiceRow(
        "gateway",
        "serves browsers: commands over HTTP, everything live over a WebSocket",
        needs=("broker", "scheduler", "telemetry"),
    ),
    ServiceRow(
        "supervisor",
        "starts and stops the runs of its host, forwards their output",
        needs=("broker", "scheduler", "telemetry"),
        arguments=("--config", "{host_config}"),
        per_host=True,
        holds_runs=True,
    ),
)
# Names of the services that a stack has once.
PER_STACK = tuple(row.name for row in SERVICES if not row.per_host)


def in_start_order(rows: Iterable[ServiceRow] = SERVICES) -> list[ServiceRow]:
    """Sort services so that each comes after those it needs. They are stopped in reverse."""
    by_name = {row.name: row for row in rows}
    order = TopologicalSorter({name: row.needs for name, row in by_name.items()}).static_order()
    return [by_name[name] for name in order]


def bus_names(hosts: Iterable[str]) -> list[str]:
    """Names on the bus of all services of a stack with these hosts."""
    known = list(hosts)
    return [*PER_STACK, *(row.bus_name(host) for row in SERVICES if row.per_host for host in known)]


def describe() -> str:
    """List the services in words: `broker, scheduler and supervisor.HOST`."""
    names = [row.bus_name("HOST") for row in SERVICES]
    return f"{', '.join(names[:-1])} and {names[-1]}"
