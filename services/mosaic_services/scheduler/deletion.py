"""Deletes runs that have ended: chooses them, has their files and events removed, and forgets them last.

A deletion that is interrupted leaves the run in the list, so that it can be deleted again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from mosaic_bus import topics
from mosaic_bus.commands import (
    DeletedRun,
    DeleteResult,
    DiskUse,
    KeptRun,
    Ping,
    RemoveEvents,
    RemoveFiles,
    StoredBytes,
)
from mosaic_bus.errors import BusError, CommandRefusedError
from mosaic_bus.messages import RunStateName
from mosaic_bus.refusals import RefusalCode, RefusalDetails
from mosaic_services.scheduler.naming import find_group, find_run
from mosaic_services.scheduler.wording import listed

if TYPE_CHECKING:
    from collections.abc import Callable

    from mosaic_bus.client import BusClient
    from mosaic_bus.commands import Delete
    from mosaic_services.scheduler.ledger import Ledger
    from mosaic_services.scheduler.model import Run

__all__ = ["choose", "delete"]

_ANSWER_S = 60.0
"""Time to remove the files or the events of a run, which may be large."""
_SHORT_S = 10.0
"""Time for what is answered at once, or not needed: an absent host must not use up the time of the whole command."""
_SIZES_AT_ONCE = 1000


def choose(ledger: Ledger, command: Delete) -> tuple[list[Run], list[KeptRun]]:
    """Return the runs to delete, and those that are kept although they were meant; refuse what has not ended."""
    if command.runs:
        chosen = list({run.id: run for run in (find_run(ledger.runs, each) for each in command.runs)}.values())
        for run in chosen:
            if not run.final:
                said = f"{run.name} ({run.short}) is still {run.state}: cancel it first"
                raise CommandRefusedError(
                    RefusalCode.NOT_FINAL, said, RefusalDetails(run=run.id, state=run.state.value)
                )
    elif command.older_than_s is None and not command.group:
        said = "nothing is selected: give runs, older_than_s or group"
        raise CommandRefusedError(RefusalCode.INVALID_ARGUMENTS, said, RefusalDetails(field="runs"))
    else:
        members = find_group(ledger.groups, command.group)[1].values() if command.group else ledger.runs.values()
        latest = ledger.at.wall - (command.older_than_s or 0.0)
        chosen = [run for run in members if run.final and (run.ended_at or run.changed_at) <= latest]
    known = [name.value for name in RunStateName if name.final]
    if unknown := [name for name in command.states if name not in known]:
        said = f"no run ends as {unknown[0]!r}; there are {', '.join(known)}"
        raise CommandRefusedError(RefusalCode.INVALID_ARGUMENTS, said, RefusalDetails(field="states", allowed=known))
    chosen = [run for run in chosen if not command.states or run.state.value in command.states]
    needed: dict[str, list[str]] = {}
    for run in ledger.runs.values():
        if not run.final:
            for each in {*run.after, *(reference.run for reference in run.references)}:
                needed.setdefault(each, []).append(f"{run.name} ({run.short})")
    kept = [
        KeptRun(run=run.id, name=run.name, reason=f"{listed(needed[run.id])} needs it")
        for run in chosen
        if run.id in needed
    ]
    return [run for run in chosen if run.id not in needed], kept


async def delete(
    bus: BusClient, command: Delete, runs: list[Run], kept: list[KeptRun], forget: Callable[[Run], None]
) -> DeleteResult:
    """Delete runs one by one, or only say what they take."""
    absent = await _find_absent(bus, {host for run in runs for host in _hosts(run)})
    sizes = await _sizes(bus, runs, absent)
    result = DeleteResult(deleted=[], kept=kept)
    for run in runs:
        problem = "" if command.without_host else _lacking(run, absent)
        if not problem and not command.dry_run:
            problem = await _remove(bus, run, absent, without_host=command.without_host)
        if problem:
            result.kept.append(KeptRun(run=run.id, name=run.name, reason=problem))
            continue
        if not command.dry_run:
            forget(run)
        result.deleted.append(
            DeletedRun(
                run=run.id, name=run.name, state=run.state.value, ended_at=run.ended_at, bytes=sizes.get(run.id, 0)
            )
        )
    return result


def _hosts(run: Run) -> list[str]:
    return sorted({attempt.host for attempt in run.attempts})


async def _find_absent(bus: BusClient, hosts: set[str]) -> set[str]:
    """Return the hosts that do not answer, all asked at once."""

    async def is_absent(host: str) -> bool:
        try:
            await bus.request(topics.supervisor(host), Ping(), timeout=_SHORT_S)
        except CommandRefusedError:
            return False
        except BusError:
            return True
        return False

    ordered = sorted(hosts)
    found = await asyncio.gather(*map(is_absent, ordered))
    return {host for host, absent in zip(ordered, found, strict=True) if absent}


def _lacking(run: Run, absent: set[str]) -> str:
    """Say which host of a run is absent, if one is."""
    for host in _hosts(run):
        if host in absent:
            return (
                f"host {host}, which has files of it, does not answer; delete it nevertheless with: "
                f"mosaic delete {run.short} --without-host"
            )
    return ""


async def _remove(bus: BusClient, run: Run, absent: set[str], *, without_host: bool) -> str:
    """Remove the files and events of a run; return what went wrong. Adds hosts that fall silent to `absent`."""
    for host in _hosts(run):
        if host in absent:
            continue
        try:
            await bus.request(topics.supervisor(host), RemoveFiles(run=run.id), timeout=_ANSWER_S)
        except CommandRefusedError as error:
            return error.message
        except BusError:
            absent.add(host)
            if not without_host:
                return _lacking(run, absent)
    try:
        await bus.request("telemetry", RemoveEvents(run=run.id, open_too=without_host), timeout=_ANSWER_S)
    except BusError as error:
        return error.message if isinstance(error, CommandRefusedError) else str(error)
    return ""


async def _sizes(bus: BusClient, runs: list[Run], absent: set[str]) -> dict[str, int]:
    """Ask what runs take on their hosts and in the store."""
    asked: dict[str, list[str]] = {"telemetry": [run.id for run in runs]}
    for run in runs:
        for host in _hosts(run):
            if host not in absent:
                asked.setdefault(topics.supervisor(host), []).append(run.id)
    sizes: dict[str, int] = {}
    for service, names in asked.items():
        for at in range(0, len(names), _SIZES_AT_ONCE):
            some = names[at : at + _SIZES_AT_ONCE]
            try:
                if service == "telemetry":
                    found = (await bus.request(service, StoredBytes(runs=some), timeout=_SHORT_S)).runs
                else:
                    found = (await bus.request(service, DiskUse(runs=some), timeout=_SHORT_S)).runs
            except BusError:
                break
            for run_id, size in found.items():
                sizes[run_id] = sizes.get(run_id, 0) + size
    return sizes
