"""Answers queries about runs and hosts from the ledger."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any

from mosaic_bus.commands import GroupList, GroupState, HostList, RunList, SnapshotResult
from mosaic_bus.errors import CommandRefusedError
from mosaic_bus.messages import RunStateName
from mosaic_bus.refusals import RefusalCode, RefusalDetails
from mosaic_bus.wording import near_names
from mosaic_services.scheduler.naming import find_group, match_run

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mosaic_bus.commands import Runs, Snapshot
    from mosaic_services.scheduler.ledger import Ledger
    from mosaic_services.scheduler.model import Attempt, Run

__all__ = ["attempt_detail", "group_list", "host_list", "run_list", "snapshot", "state_counts"]


def run_list(ledger: Ledger, command: Runs, now: float) -> RunList:
    """Runs that match, newest first; runs that were asked for by name in the order of the names."""
    states = command.states
    known = [name.value for name in RunStateName]
    if unknown := [name for name in states if name not in known]:
        said = f"no such state: {', '.join(map(repr, unknown))}"
        details = RefusalDetails(field="states", value=unknown[0], near=near_names(unknown[0], known), allowed=known)
        raise CommandRefusedError(RefusalCode.INVALID_ARGUMENTS, said, details)
    wanted = frozenset(states)
    runs: Iterable[Run] = reversed(ledger.runs.values())
    shared: dict[str, int] = {}
    if command.group:
        runs = reversed(find_group(ledger.groups, command.group)[1].values())
    if command.runs:
        named, shared = _named(ledger, command)
        runs = named.values() if not command.group else [run for run in runs if run.id in named]
    matching = list(runs)
    found = [run for run in matching if not wanted or run.state in wanted]
    return RunList(
        runs=[ledger.render(run, now) for run in found[: command.limit]],
        total=len(found),
        counts=Counter(run.state.value for run in matching),
        shared=shared,
    )


def _named(ledger: Ledger, command: Runs) -> tuple[dict[str, Run], dict[str, int]]:
    found: dict[str, Run] = {}
    shared: dict[str, int] = {}
    for index, query in enumerate(command.runs):
        try:
            run, alike = match_run(ledger.runs, query, active=command.active)
        except CommandRefusedError as error:
            raise error.about("", field="runs", index=index) from error
        found[run.id] = run
        if alike > 1:
            shared[query] = alike
    return found, shared


def group_list(ledger: Ledger, query: str, limit: int) -> GroupList:
    """Groups, newest first, or the one that fits the query."""
    if query:
        return GroupList(groups=[_group_state(ledger, *find_group(ledger.groups, query))])
    newest = islice(reversed(ledger.groups.items()), limit)
    return GroupList(groups=[_group_state(ledger, name, members) for name, members in newest])


def _group_state(ledger: Ledger, name: str, members: dict[str, Run]) -> GroupState:
    runs = [run for run in members.values() if run.id not in ledger.replaced]
    counts: dict[str, int] = {}
    for run in runs:
        counts[run.state.value] = counts.get(run.state.value, 0) + 1
    ends = [run.ended_at for run in runs if run.final and run.ended_at is not None]
    return GroupState(
        group=name,
        total=len(runs),
        counts=counts,
        submitted_at=min(run.submitted_at for run in members.values()),
        ended_at=max(ends) if ends and len(ends) == len(runs) else None,
    )


def host_list(ledger: Ledger, now: float) -> HostList:
    """Hosts that have reported, and for how long each has been silent."""
    hosts = {host.name: host for host in ledger.hosts.values() if host.state is not None}
    return HostList(
        hosts=[host.state for host in hosts.values() if host.state is not None],
        silent_s={name: max(0.0, round(now - host.heard_at, 3)) for name, host in hosts.items()},
        drained={name: host.drained for name, host in hosts.items() if host.drained},
        paused=ledger.paused or None,
    )


def snapshot(ledger: Ledger, command: Snapshot, now: float) -> SnapshotResult:
    """Runs of the selection that are not final and the newest final ones, newest first, and all hosts."""
    if command.runs:
        chosen = [ledger.runs[run] for run in dict.fromkeys(command.runs) if run in ledger.runs]
    else:
        chosen = list((ledger.groups.get(command.group, {}) if command.group else ledger.runs).values())
    changed = [run for run in reversed(chosen) if run.version > command.since]
    ended = {run.id for run in islice((run for run in changed if run.final), command.final_limit)}
    hosts = host_list(ledger, now)
    return SnapshotResult(
        version=ledger.publications.version,
        runs=[ledger.render(run, now) for run in changed if not run.final or run.id in ended],
        counts=Counter(run.state.value for run in chosen),
        hosts=hosts.hosts,
        silent_s=hosts.silent_s,
    )


def state_counts(ledger: Ledger) -> dict[str, int]:
    """Number of runs by state."""
    return Counter(run.state.value for run in ledger.runs.values())


def attempt_detail(run: Run, attempt: Attempt) -> dict[str, Any]:
    """One attempt, as in the answer to `show`."""
    return {
        "attempt": attempt.number,
        "host": attempt.host,
        "phase": attempt.phase.value if attempt.phase else None,
        "outcome": attempt.outcome or None,
        "resources": attempt.resources.model_dump(),
        "gpus": attempt.gpus,
        "resume": attempt.resume.model_dump() if attempt.resume else None,
        "inputs": [each.model_dump(mode="json") for each in run.inputs],
        "placed_at": attempt.placed_at,
        "started_at": attempt.started_at,
        "ended_at": attempt.ended_at,
        "exit": attempt.exit.model_dump(mode="json") if attempt.exit else None,
    }
