"""What clients ask of the scheduler, decided: each function takes an event and answers or refuses it."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

from mosaic_bus.commands import Ack, Submitted, SubmittedMany
from mosaic_bus.errors import CommandRefusedError
from mosaic_bus.messages import RunStateName
from mosaic_services.scheduler import instructions as todo
from mosaic_services.scheduler.model import Ending, Run
from mosaic_services.scheduler.naming import find_group, find_run, make_name
from mosaic_services.scheduler.outcomes import Outcome
from mosaic_services.scheduler.validation import check_submission
from mosaic_services.scheduler.wording import amounts, listed, said_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mosaic_bus.messages import RunSpec
    from mosaic_services.scheduler import events
    from mosaic_services.scheduler.ledger import Ledger

__all__ = [
    "cancel",
    "cancel_group",
    "drain",
    "pause",
    "prioritise",
    "rerun",
    "submit",
    "submit_many",
]

_TIME_PART = 10
_CIRCLE_NAMED = 10


# ── submitting ──────────────────────────────────────────────────────────────────────────────────────


def submit(ledger: Ledger, event: events.Submitted) -> None:
    """Take in one run."""
    runs, new = _admit(ledger, [(event.run, event.spec)])
    _answer(ledger, _submitted(runs[0]), new)


def submit_many(ledger: Ledger, event: events.SubmittedMany) -> None:
    """Take in many runs, or none of them."""
    runs, new = _admit(ledger, event.runs)
    _answer(ledger, SubmittedMany(runs=[_submitted(run) for run in runs]), new)


def rerun(ledger: Ledger, event: events.RerunRequested) -> None:
    """Submit a run again, or those of a group that did not succeed."""
    if event.group:
        group, members = find_group(ledger.groups, event.group)
        old = [run for run in members.values() if _did_not_succeed(ledger, run, event.request)]
        if not old:
            raise CommandRefusedError("nothing_to_rerun", f"no run of {group} has failed or was lost")
    else:
        old = [find_run(ledger.runs, event.run)]
        if not old[0].final:
            raise CommandRefusedError("not_final", f"{old[0].name} is still {old[0].state}: cancel it first")
    ids = {run.id: _derived_id(event.request, run.id) for run in old}
    again = []
    for run in old:
        after = tuple(ids.get(each) or _newest(ledger, each) for each in run.after)
        again.append((ids[run.id], run.spec.model_copy(update={"replaces": run.id, "name": run.name, "after": after})))
    runs, new = _admit(ledger, again)
    _answer(ledger, SubmittedMany(runs=[_submitted(run) for run in runs]), new)


def _did_not_succeed(ledger: Ledger, run: Run, request: str) -> bool:
    """Whether a run is worth repeating: failed, lost, or never begun because of another, and not repeated yet."""
    repeated = ledger.replaced.get(run.id)
    if repeated is not None and repeated != _derived_id(request, run.id):
        return False
    skipped = run.state is RunStateName.CANCELLED and bool(run.after) and not run.attempts and bool(ledger.unmet(run))
    return run.state in {RunStateName.FAILED, RunStateName.LOST} or skipped


def _newest(ledger: Ledger, run: str) -> str:
    # Stores of earlier versions may hold runs that replace each other, or themselves.
    seen = {run}
    while (newer := ledger.replaced.get(run)) is not None and newer not in seen:
        seen.add(newer)
        run = newer
    return run


def _derived_id(request: str, run: str) -> str:
    """The id of a repetition: the same for the same request, however often that arrives."""
    digest = hashlib.sha256(f"{request} {run}".encode()).digest()[:10]
    # Base 32 as in RFC 4648, written with the letters of a ULID.
    text = base64.b32encode(digest).decode().translate(_TO_ULID)
    return request[:_TIME_PART] + text


_TO_ULID = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", "0123456789ABCDEFGHJKMNPQRSTVWXYZ")


def _submitted(run: Run) -> Submitted:
    return Submitted(run=run.id, name=run.name, warnings=list(run.warnings))


def _admit(ledger: Ledger, given: Sequence[tuple[str, RunSpec]]) -> tuple[list[Run], tuple[str, ...]]:
    """Check runs and queue them, all or none; one that is known is left as it is. Return all, and the new ones' ids."""
    batch = {run_id: make_name(spec) for run_id, spec in given}
    named: dict[str, list[str]] = {}
    for run_id, name in batch.items():
        named.setdefault(name, []).append(run_id)
    new: list[Run] = []
    for number, (run_id, spec) in enumerate(given):
        try:
            if known := ledger.runs.get(run_id):
                if known.spec != spec:
                    said = f"run {run_id} was already submitted with another spec; use a new id"
                    raise CommandRefusedError("id_reused", said)
                continue
            warnings, checked = check_submission(spec, ledger.hosts.values(), ledger.schemas)
            if spec.replaces and spec.replaces not in ledger.runs:
                raise CommandRefusedError("unknown_run", f"replaces: no earlier run has the id {spec.replaces!r}")
            after = _resolve(ledger, spec, batch, named)
        except CommandRefusedError as error:
            if len(given) == 1:
                raise
            where = f"run {number + 1} of {len(given)} ({batch[run_id]}): "
            raise CommandRefusedError(error.code, where + error.message, error.details) from error
        seq, wall = ledger.next_seq() + len(new), ledger.at.wall
        entry = Run(run_id, seq, spec, batch[run_id], wall, wall, tuple(warnings), checked=checked)
        entry.priority, entry.after = spec.priority, after
        new.append(entry)
    _refuse_circles(new)
    ledger.enqueue(new)
    for run in new:
        ledger.decide(run, "submitted", _what(run))
        for warning in run.warnings:
            ledger.decide(run, "warning", warning)
    ledger.place()
    for run in new:
        if run.state is RunStateName.QUEUED:
            ledger.decide(run, "queued", ledger.waits_for(run, ledger.at.mono))
            ledger.publish_first(run, soon=len(new) > 1)
    return [ledger.runs[run_id] for run_id, _ in given], tuple(run.id for run in new)


def _what(run: Run) -> str:
    spec = run.spec
    priority = f", priority {run.priority}" if run.priority else ""
    group = f", of {spec.group}" if spec.group else ""
    again = f", again for {spec.replaces[-6:]}" if spec.replaces else ""
    return f"{spec.worker}/{spec.profile}, {amounts(spec.resources)}{priority}{group}{again}"


def _resolve(ledger: Ledger, spec: RunSpec, batch: dict[str, str], named: dict[str, list[str]]) -> tuple[str, ...]:
    """Find the runs that a run is to come after: by id, or by name, in the same command first."""
    found: dict[str, None] = {}
    for query in spec.after:
        fresh = [query] if query in batch else named.get(query, [])
        if len(fresh) > 1:
            said = f"after: {query!r} is the name of {len(fresh)} runs of this command; use ids"
            raise CommandRefusedError("ambiguous_run", said)
        if fresh and fresh[0] not in ledger.runs:
            found[fresh[0]] = None
            continue
        try:
            first = find_run(ledger.runs, fresh[0] if fresh else query)
        except CommandRefusedError as error:
            raise CommandRefusedError(error.code, f"after: {error.message}", error.details) from error
        if first.final and first.state is not RunStateName.SUCCEEDED:
            said = f"after: {first.name} ({first.short}) {said_of(first.state)}, so this run would never start"
            raise CommandRefusedError("after_failed", said)
        found[first.id] = None
    return tuple(found)


def _refuse_circles(new: list[Run]) -> None:
    """Refuse runs that wait for each other; only those of one command can."""
    fresh = {run.id: run for run in new}
    waits = {run.id: {each for each in run.after if each in fresh} for run in new}
    followers: dict[str, list[str]] = {}
    for run_id, first in waits.items():
        for each in first:
            followers.setdefault(each, []).append(run_id)
    free = [run_id for run_id, first in waits.items() if not first]
    while free:
        done = free.pop()
        del waits[done]
        for each in followers.get(done, ()):
            waits[each].discard(done)
            if not waits[each]:
                free.append(each)
    if not waits:
        return
    # Whoever is left waits for somebody who is left, too: following them leads round.
    circle = [next(iter(waits))]
    while (following := min(waits[circle[-1]])) not in circle:
        circle.append(following)
    circle = [*circle[circle.index(following) :], following]
    said = " after ".join(f"{fresh[each].name} ({each[-6:]})" for each in circle[:_CIRCLE_NAMED])
    raise CommandRefusedError("circular_after", f"these runs wait for each other: {said}", {"runs": circle[:100]})


# ── changing one's mind ─────────────────────────────────────────────────────────────────────────────


def cancel(ledger: Ledger, event: events.CancelRequested) -> None:
    """Stop a run, or take it out of the queue."""
    run = find_run(ledger.runs, event.query)
    if run.final:
        said = f"run {run.short} ({run.name}) {said_of(run.state)} already: {run.reason}"
        raise CommandRefusedError("already_final", said, {"run": run.id, "state": run.state.value})
    note = _cancel(ledger, run, event.reason)
    ledger.place()
    _answer(ledger, Ack(note=note))


def cancel_group(ledger: Ledger, event: events.GroupCancelRequested) -> None:
    """Stop all runs of a group."""
    group, members = find_group(ledger.groups, event.group)
    running = [run for run in members.values() if not run.final]
    if not running:
        raise CommandRefusedError("already_final", f"all {len(members)} runs of {group} have ended")
    for run in running:
        # One that was to come after another of them has ended with it.
        if not run.final:
            _cancel(ledger, run, event.reason)
    ledger.place()
    _answer(ledger, Ack(note=f"{len(running)} of {len(members)} runs of {group} are cancelled or being stopped"))


def _cancel(ledger: Ledger, run: Run, reason: str) -> str:
    attempt = run.current
    if attempt is None:
        ledger.end(run, Outcome(RunStateName.CANCELLED, reason))
        return f"{run.name} is taken out of the queue"
    if run.ending is not None:
        return f"{run.name} is already being stopped: {run.ending.reason}"
    ledger.stop(run, attempt, Ending(RunStateName.CANCELLED, reason))
    return f"{run.name} is being stopped on {attempt.host}"


def prioritise(ledger: Ledger, event: events.PriorityRequested) -> None:
    """Change the priority of a run, or of the runs of a group, that wait."""
    if event.group:
        what, members = find_group(ledger.groups, event.group)
        waiting = [run for run in members.values() if run.state is RunStateName.QUEUED]
    else:
        run = find_run(ledger.runs, event.query)
        what = f"{run.name} ({run.short})"
        waiting = [run] if run.state is RunStateName.QUEUED else []
    if not waiting:
        raise CommandRefusedError("already_placed", f"{what} does not wait in the queue")
    for run in waiting:
        before, run.priority = run.priority, event.priority
        ledger.queue.reorder(run)
        ledger.decide(run, "priority", f"from {before} to {event.priority}")
        ledger.save(run)
        ledger.publish_soon(run)
    ledger.place()
    count = f" ({len(waiting)} runs)" if event.group else ""
    _answer(ledger, Ack(note=f"{what} has priority {event.priority}{count}"))


# ── queue and hosts ─────────────────────────────────────────────────────────────────────────────────


def pause(ledger: Ledger, event: events.PauseRequested) -> None:
    """Place nothing more, or go on placing."""
    ledger.set("paused", (event.reason or "no reason given") if event.paused else "")
    ledger.place()
    running = sum(len(host.placed) for host in ledger.hosts.values())
    going = "1 run goes on" if running == 1 else f"{running} runs go on"
    note = f"the queue is paused; {going}" if event.paused else "the queue goes on"
    _answer(ledger, Ack(note=note))


def drain(ledger: Ledger, event: events.DrainRequested) -> None:
    """Place nothing more on a host, or place there again."""
    # One that was drained and has not reported since a restart is known, too.
    if event.host not in ledger.hosts and f"drained:{event.host}" not in ledger.settings:
        said = f"no host is called {event.host!r}; hosts: {listed(list(ledger.hosts)) or 'none'}"
        raise CommandRefusedError("unknown_host", said, {"known": list(ledger.hosts)})
    host = ledger.host(event.host)
    host.drained = (event.reason or "no reason given") if event.drained else ""
    ledger.set(f"drained:{host.name}", host.drained)
    ledger.place()
    left = f"{len(host.placed)} runs there go on" if host.placed else "nothing runs there"
    _answer(
        ledger, Ack(note=f"{host.name} gets nothing new; {left}" if event.drained else f"{host.name} is used again")
    )


def _answer(ledger: Ledger, result: Ack | Submitted | SubmittedMany, new: tuple[str, ...] = ()) -> None:
    ledger.out.append(todo.Answer(result, new))
