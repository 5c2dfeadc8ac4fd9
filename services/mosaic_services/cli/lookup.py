"""Finds runs by id or name, with a note if several share the name."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from mosaic_bus.commands import RunList, Runs
from mosaic_services.cli.display.output import short

if TYPE_CHECKING:
    from mosaic_bus import Bus
    from mosaic_bus.messages import RunState

__all__ = ["find_run", "find_runs", "note_shared"]


def find_run(bus: Bus, query: str, *, active: bool = False) -> RunState:
    """Find a run by id, a unique part of one, or name: the newest of that name, or the only active one."""
    return find_runs(bus, [query], active=active)[0]


def find_runs(bus: Bus, queries: list[str], *, active: bool = False) -> list[RunState]:
    """Find several runs, each once, in the order in which they are asked for."""
    found = bus.request("scheduler", Runs(runs=queries, active=active))
    note_shared(found)
    return found.runs


def note_shared(found: RunList) -> None:
    """Print a note to stderr for each name that several runs share."""
    for name, alike in found.shared.items():
        run = next(each for each in found.runs if each.name == name.strip())
        print(f"note: {alike} runs are called {name}; this is {short(run.run)} ({run.state})", file=sys.stderr)
