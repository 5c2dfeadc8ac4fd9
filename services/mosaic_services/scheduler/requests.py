"""Executes the commands that change something, or refuses them before anything changes."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from mosaic_bus.commands import (
    Ack,
    Cancel,
    CancelGroup,
    CheckResult,
    Drain,
    PauseQueue,
    Prioritise,
    Rerun,
    Submit,
    SubmitMany,
    Submitted,
    SubmittedMany,
)
from mosaic_bus.errors import CommandRefusedError
from mosaic_bus.messages import RunSpec, RunStateName
from mosaic_bus.refusals import Problem, RefusalCode, RefusalDetails, brief, find_problems
from mosaic_bus.wording import near_names
from mosaic_services.checkpoint_references import FORM, parse
from mosaic_services.config_fields import dotted, replace_at
from mosaic_services.scheduler.model import Ending, Reference, Run
from mosaic_services.scheduler.naming import find_group, find_run, make_name
from mosaic_services.scheduler.outcomes import Outcome
from mosaic_services.scheduler.validation import check_submission
from mosaic_services.scheduler.wording import amounts, said_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mosaic_bus.commands import Command
    from mosaic_bus.messages import Model
    from mosaic_services.config_fields import Field
    from mosaic_services.scheduler.ledger import Ledger

__all__ = ["check", "execute"]

_TIME_PART = 10
_CIRCLE_NAMED = 10


def execute(ledger: Ledger, command: Command[Any]) -> Model:
    """Execute a command and return its result; raise CommandRefusedError before anything has changed."""
    match command:
        case Submit():
            return _submitted(_admit(ledger, {command.run: command.spec})[0])
        case SubmitMany():
            given = {each.run: each.spec for each in command.runs}
            if len(given) < len(command.runs):
                raise CommandRefusedError(RefusalCode.ID_REUSED, "two runs of this command have the same id")
            return SubmittedMany(runs=[_submitted(run) for run in _admit(ledger, given)])
        case Rerun():
            return SubmittedMany(runs=[_submitted(run) for run in _rerun(ledger, command)])
        case Cancel():
            return Ack(note=_cancel(ledger, command))
        case CancelGroup():
            return Ack(note=_cancel_group(ledger, command))
        case Prioritise():
            return Ack(note=_prioritise(ledger, command))
        case PauseQueue():
            return Ack(note=_pause(ledger, command))
        case Drain():
            return Ack(note=_drain(ledger, command))
        case _:
            raise TypeError(f"no such command: {command!r}")


# ── submitting ──────────────────────────────────────────────────────────────────────────────────────


def _rerun(ledger: Ledger, command: Rerun) -> list[Run]:
    """Submit a run again, or those of a group that did not succeed."""
    if command.group:
        group, members = find_group(ledger.groups, command.group)
        old = [run for run in members.values() if _did_not_succeed(ledger, run, command.request)]
        if not old:
            raise CommandRefusedError(
                RefusalCode.NOTHING_TO_RERUN,
                f"no run of {group} has failed or was lost",
                RefusalDetails(value=group),
            )
    else:
        old = [find_run(ledger.runs, command.run)]
        if not old[0].final:
            said = f"{old[0].name} is still {old[0].state}: cancel it first"
            raise CommandRefusedError(RefusalCode.NOT_FINAL, said, _about(old[0]))
    ids = {run.id: _derived_id(command.request, run.id) for run in old}
    again = {}
    for run in old:
        after = tuple(ids.get(each) or _newest(ledger, each) for each in run.after)
        config = run.spec.config
        for each in run.references:
            source = ids.get(each.run) or _newest(ledger, each.run)
            config = replace_at(config, each.field, f"run:{source}@{each.wanted}")
        changed = {"replaces": run.id, "name": run.name, "after": after, "config": config}
        again[ids[run.id]] = run.spec.model_copy(update=changed)
    return _admit(ledger, again)


def _did_not_succeed(ledger: Ledger, run: Run, request: str) -> bool:
    """Whether to repeat a run: it failed, was lost, or never began because another failed, and is not repeated yet."""
    repeated = ledger.replaced.get(run.id)
    if repeated is not None and repeated != _derived_id(request, run.id):
        return False
    skipped = run.state is RunStateName.CANCELLED and bool(run.after) and not run.attempts and bool(ledger.unmet(run))
    return run.state in {RunStateName.FAILED, RunStateName.LOST} or skipped


def _newest(ledger: Ledger, run: str) -> str:
    while (newer := ledger.replaced.get(run)) is not None:
        run = newer
    return run


def _derived_id(request: str, run: str) -> str:
    """The id of a repetition; the same request always gives the same id."""
    digest = hashlib.sha256(f"{request} {run}".encode()).digest()[:10]
    # Base 32 of RFC 4648 in the alphabet of ULIDs.
    text = base64.b32encode(digest).decode().translate(_TO_ULID)
    return request[:_TIME_PART] + text


_TO_ULID = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ234567", "0123456789ABCDEFGHJKMNPQRSTVWXYZ")


def _submitted(run: Run) -> Submitted:
    return Submitted(run=run.id, name=run.name, warnings=list(run.warnings))


def _as_stored(spec: RunSpec) -> RunSpec:
    """A spec as the store will return it, so that equal specs compare equal."""
    try:
        return RunSpec.model_validate_json(spec.model_dump_json())
    except (PydanticSerializationError, ValidationError) as error:
        raise CommandRefusedError(RefusalCode.INVALID_CONFIG, f"the spec cannot be written as JSON: {error}") from error


def check(ledger: Ledger, document: dict[str, Any]) -> CheckResult:
    """Say what `submit` would say about a spec; nothing changes."""
    try:
        spec = RunSpec.model_validate(document)
        (run,) = _checked(ledger, {"": spec})
    except ValidationError as error:
        problems = [each.model_dump(mode="json") for each in find_problems(error)]
        return CheckResult(ok=False, code=RefusalCode.INVALID_ARGUMENTS, problems=problems)
    except CommandRefusedError as error:
        details = error.details
        whole = Problem(field=details.field, message=error.message, value=details.value, near=details.near)
        problems = [each.model_dump(mode="json") for each in details.problems or [whole]]
        return CheckResult(ok=False, run_name=make_name(spec), code=error.code, problems=problems)
    return CheckResult(ok=True, run_name=run.name, warnings=list(run.warnings))


def _admit(ledger: Ledger, given: Mapping[str, RunSpec]) -> list[Run]:
    """Check runs and queue all or none. A run that is already known is left alone."""
    new = _checked(ledger, given)
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
    return [ledger.runs[run_id] for run_id in given]


def _checked(ledger: Ledger, given: Mapping[str, RunSpec]) -> list[Run]:
    """Make the runs that are not known yet, or refuse all; nothing changes."""
    given = {run_id: _as_stored(spec) for run_id, spec in given.items()}
    batch = {run_id: make_name(spec) for run_id, spec in given.items()}
    named: dict[str, list[str]] = {}
    for run_id, name in batch.items():
        named.setdefault(name, []).append(run_id)
    new: list[Run] = []
    for number, (run_id, spec) in enumerate(given.items()):
        try:
            if known := ledger.runs.get(run_id):
                if not _is_same(known.spec, spec):
                    said = f"run {run_id} was already submitted with another spec; use a new id"
                    raise CommandRefusedError(RefusalCode.ID_REUSED, said, RefusalDetails(run=run_id))
                continue
            warnings, checked = check_submission(spec, ledger.hosts.values(), ledger.schemas)
            references = tuple(_refer(ledger, field, text, batch, named) for field, text in checked.references)
            if spec.replaces and spec.replaces not in ledger.runs:
                details = RefusalDetails(field="replaces", value=brief(spec.replaces))
                said = f"replaces: no earlier run has the id {spec.replaces!r}"
                raise CommandRefusedError(RefusalCode.UNKNOWN_RUN, said, details)
            after = _resolve_after(ledger, spec, batch, named)
        except CommandRefusedError as error:
            if len(given) == 1:
                raise
            where = f"run {number + 1} of {len(given)} ({batch[run_id]}): "
            raise error.about(where, index=number) from error
        seq, wall = ledger.next_seq() + len(new), ledger.at.wall
        arranged = checked.arranged(spec)
        entry = Run(run_id, seq, arranged, batch[run_id], wall, wall, tuple(warnings), checked=checked.fingerprint)
        entry.priority, entry.after, entry.references = spec.priority, after, references
        new.append(entry)
    _refuse_circles(new)
    return new


def _is_same(known: RunSpec, given: RunSpec) -> bool:
    """Whether a spec is the one that a run has, whose fields may have been moved to their places."""
    if known == given:
        return True
    moved = known.model_copy(update={"config": given.config})
    return moved == given and _by_name(known.config) == _by_name(given.config)


def _by_name(config: dict[str, Any]) -> dict[str, Any]:
    """Return the values of a config by the last part of their names, wherever they are."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        found.update(_by_name(value) if isinstance(value, dict) else {name: value})
    return found


def _what(run: Run) -> str:
    spec = run.spec
    priority = f", priority {run.priority}" if run.priority else ""
    group = f", of {spec.group}" if spec.group else ""
    again = f", again for {spec.replaces[-6:]}" if spec.replaces else ""
    return f"{spec.worker}/{spec.profile}, {amounts(spec.resources)}{priority}{group}{again}"


def _resolve_after(
    ledger: Ledger, spec: RunSpec, batch: dict[str, str], named: dict[str, list[str]]
) -> tuple[str, ...]:
    """Find the runs of `after`."""
    found: dict[str, None] = {}
    for query in spec.after:
        first = _find(ledger, "after", query, batch, named)
        if isinstance(first, Run) and first.final and first.state is not RunStateName.SUCCEEDED:
            said = f"after: {first.name} ({first.short}) {said_of(first.state)}, so this run would never start"
            details = RefusalDetails(field="after", value=query, run=first.id, state=first.state.value)
            raise CommandRefusedError(RefusalCode.AFTER_FAILED, said, details)
        found[first if isinstance(first, str) else first.id] = None
    return tuple(found)


def _refer(ledger: Ledger, field: Field, text: str, batch: dict[str, str], named: dict[str, list[str]]) -> Reference:
    """Find the run whose checkpoint a field names."""
    parsed = parse(text)
    if parsed is None:
        problem = Problem(field=dotted(field), message=f"{text!r} is not allowed; allowed: {FORM}", value=brief(text))
        details = RefusalDetails(field=dotted(field), value=brief(text), problems=[problem])
        raise CommandRefusedError(RefusalCode.INVALID_CONFIG, str(problem), details)
    query, wanted = parsed
    source = _find(ledger, dotted(field), query, batch, named)
    return Reference(field, source if isinstance(source, str) else source.id, wanted)


def _find(ledger: Ledger, field: str, query: str, batch: dict[str, str], named: dict[str, list[str]]) -> Run | str:
    """Find a run by id or name: the id of a run of the same command, else a known run."""
    fresh = [query] if query in batch else named.get(query, [])
    if len(fresh) > 1:
        said = f"{field}: {query!r} is the name of {len(fresh)} runs of this command; use ids"
        details = RefusalDetails(field=field, value=query, candidates=fresh[:100])
        raise CommandRefusedError(RefusalCode.AMBIGUOUS_RUN, said, details)
    if fresh and fresh[0] not in ledger.runs:
        return fresh[0]
    try:
        return find_run(ledger.runs, fresh[0] if fresh else query)
    except CommandRefusedError as error:
        raise error.about(f"{field}: ", field=field) from error


def _refuse_circles(new: list[Run]) -> None:
    """Refuse runs that wait for each other, or for each other's checkpoints; only those of one command can."""
    fresh = {run.id: run for run in new}
    before = {run.id: {*run.after, *(each.run for each in run.references)} for run in new}
    waits = {run_id: {each for each in first if each in fresh} for run_id, first in before.items()}
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
    # Each remaining run waits for another remaining run, so following them leads into a circle.
    circle = [next(iter(waits))]
    while (following := min(waits[circle[-1]])) not in circle:
        circle.append(following)
    circle = [*circle[circle.index(following) :], following]
    said = " after ".join(f"{fresh[each].name} ({each[-6:]})" for each in circle[:_CIRCLE_NAMED])
    details = RefusalDetails(candidates=circle[:100])
    raise CommandRefusedError(RefusalCode.CIRCULAR_AFTER, f"these runs wait for each other: {said}", details)


# ── changing one's mind ─────────────────────────────────────────────────────────────────────────────


def _cancel(ledger: Ledger, command: Cancel) -> str:
    """Stop a run, or remove it from the queue."""
    run = find_run(ledger.runs, command.run, active=True)
    if run.final:
        said = f"run {run.short} ({run.name}) {said_of(run.state)} already: {run.reason}"
        raise CommandRefusedError(RefusalCode.ALREADY_FINAL, said, _about(run))
    note = _end(ledger, run, command.reason)
    ledger.place()
    return note


def _cancel_group(ledger: Ledger, command: CancelGroup) -> str:
    """Stop all runs of a group."""
    group, members = find_group(ledger.groups, command.group)
    running = [run for run in members.values() if not run.final]
    if not running:
        raise CommandRefusedError(RefusalCode.ALREADY_FINAL, f"all {len(members)} runs of {group} have ended")
    for run in running:
        # A run that comes after another of the group has ended with it.
        if not run.final:
            _end(ledger, run, command.reason)
    ledger.place()
    return f"{len(running)} of {len(members)} runs of {group} are cancelled or being stopped"


def _end(ledger: Ledger, run: Run, reason: str) -> str:
    attempt = run.current
    if attempt is None:
        ledger.end(run, Outcome(RunStateName.CANCELLED, reason))
        return f"{run.name} is taken out of the queue"
    if run.ending is not None:
        return f"{run.name} is already being stopped: {run.ending.reason}"
    ledger.stop(run, attempt, Ending(RunStateName.CANCELLED, reason))
    return f"{run.name} is being stopped on {attempt.host}"


def _prioritise(ledger: Ledger, command: Prioritise) -> str:
    """Change the priority of a waiting run, or of the waiting runs of a group."""
    if command.group:
        what, members = find_group(ledger.groups, command.group)
        details = None
        waiting = [run for run in members.values() if run.state is RunStateName.QUEUED]
    else:
        run = find_run(ledger.runs, command.run, active=True)
        what, details = f"{run.name} ({run.short})", _about(run)
        waiting = [run] if run.state is RunStateName.QUEUED else []
    if not waiting:
        raise CommandRefusedError(RefusalCode.ALREADY_PLACED, f"{what} does not wait in the queue", details)
    for run in waiting:
        before, run.priority = run.priority, command.priority
        ledger.queue.reorder(run)
        ledger.decide(run, "priority", f"from {before} to {command.priority}")
        ledger.save(run)
        ledger.publish_soon(run)
    ledger.place()
    count = f" ({len(waiting)} runs)" if command.group else ""
    return f"{what} has priority {command.priority}{count}"


def _about(run: Run) -> RefusalDetails:
    return RefusalDetails(run=run.id, state=run.state.value)


# ── queue and hosts ─────────────────────────────────────────────────────────────────────────────────


def _pause(ledger: Ledger, command: PauseQueue) -> str:
    """Pause or resume the queue."""
    ledger.set("paused", (command.reason or "no reason given") if command.paused else "")
    ledger.place()
    running = sum(len(host.placed) for host in ledger.hosts.values())
    going = "1 run continues" if running == 1 else f"{running} runs continue"
    return f"the queue is paused; {going}" if command.paused else "the queue is resumed"


def _drain(ledger: Ledger, command: Drain) -> str:
    """Drain a host, or use it again."""
    # A drained host is known even if it has not reported since a restart.
    if command.host not in ledger.hosts and f"drained:{command.host}" not in ledger.settings:
        known = list(ledger.hosts)
        details = RefusalDetails(value=brief(command.host), near=near_names(command.host, known), allowed=known)
        raise CommandRefusedError(RefusalCode.UNKNOWN_HOST, f"no host is called {command.host!r}", details)
    host = ledger.host(command.host)
    host.drained = (command.reason or "no reason given") if command.drained else ""
    ledger.set(f"drained:{host.name}", host.drained)
    ledger.place()
    left = f"{len(host.placed)} runs there continue" if host.placed else "nothing runs there"
    return f"{host.name} gets no new runs; {left}" if command.drained else f"{host.name} is used again"
