"""References to checkpoints of other runs: `run:NAME@last` in a config where the worker takes a path.

A reference is found and its run identified at submit. The run then waits until telemetry knows such a checkpoint; what
is found is kept, so that a further attempt reads the same file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mosaic_bus.messages import FailureCategory, Input, RunStateName
from mosaic_services.checkpoint_references import pick
from mosaic_services.config_fields import dotted
from mosaic_services.scheduler import instructions as todo
from mosaic_services.scheduler.outcomes import Outcome
from mosaic_services.scheduler.wording import listed, said_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mosaic_bus.commands import SavedCheckpoint
    from mosaic_services.scheduler.events import CheckpointsKnown
    from mosaic_services.scheduler.ledger import Ledger
    from mosaic_services.scheduler.model import Reference, Run

__all__ = ["fetch", "resolve", "waits_for"]

# Interval between two questions about the checkpoints of one run, and how many runs one tick asks about.
FETCH_AGAIN_S = 1.0
_FETCHED_AT_ONCE = 50
# Seconds to wait until the journal of a run that has ended is stored; that of a lost host may never be.
SETTLE_S = 60.0
_CHECKPOINTS_NAMED = 8


def fetch(ledger: Ledger) -> None:
    """Ask which checkpoints there are by now, for the runs that wait for one."""
    if not ledger.queue.awaiting:
        ledger.fetched.clear()
        ledger.unsettled.clear()
        return
    wanted = dict.fromkeys(each.run for run in ledger.queue.awaiting.values() for each in run.references)
    now = ledger.at.mono
    due = [run for run in wanted if now - ledger.fetched.get(run, float("-inf")) >= FETCH_AGAIN_S]
    for run in sorted(due, key=lambda each: ledger.fetched.get(each, float("-inf")))[:_FETCHED_AT_ONCE]:
        ledger.fetched[run] = now
        ledger.out.append(todo.FetchCheckpoints(run))


def resolve(ledger: Ledger, event: CheckpointsKnown) -> None:
    """Release runs whose checkpoints are now known; fail those whose checkpoint will never exist."""
    ledger.unanswered = event.problem
    for run in list(ledger.queue.awaiting.values()):
        if any(each.run == event.run for each in run.references):
            if not event.problem:
                _resolve(ledger, run, event)
            said = ("queued", waits_for(ledger, run)) if run.id in ledger.queue.awaiting else run.last_decision
            if said != run.last_decision:
                ledger.decide(run, *said)
                ledger.publish_soon(run)


def _resolve(ledger: Ledger, run: Run, event: CheckpointsKnown) -> None:
    source = ledger.runs[event.run]
    if source.final and not _is_settled(ledger, source, event):
        return
    for reference in run.references:
        if reference.run != source.id:
            continue
        saved = pick(reference.wanted, event.saved)
        if saved is not None:
            run.found[reference.field] = Input(
                field=reference.field,
                run=source.id,
                attempt=saved.attempt,
                host=saved.host,
                path=saved.path,
                step=saved.step,
            )
        elif source.final:
            _fail(
                ledger,
                run,
                f"{dotted(reference.field)}: {_said(ledger, reference)} is not there, and that run "
                f"{said_of(source.state)}; it has saved: {_told(event.saved)}",
            )
            return
    if all(each.field in run.found for each in run.references):
        _release(ledger, run)


def _is_settled(ledger: Ledger, source: Run, event: CheckpointsKnown) -> bool:
    """Whether telemetry has stored all that a run that has ended wrote, or has had time enough to do so."""
    since = ledger.unsettled.setdefault(source.id, ledger.at.mono)
    return event.stored >= source.begun or ledger.at.mono - since > SETTLE_S


def _release(ledger: Ledger, run: Run) -> None:
    run.inputs = tuple(run.found[each.field] for each in run.references)
    hosts = sorted({each.host for each in run.inputs})
    if len(hosts) > 1:
        _fail(ledger, run, f"the checkpoints that it reads are on different hosts: {', '.join(hosts)}")
        return
    for reference, found in zip(run.references, run.inputs, strict=True):
        step = "" if found.step is None else f" of step {found.step}"
        said = f"{dotted(found.field)} is {_said(ledger, reference)}{step}: {found.path} of attempt {found.attempt}"
        ledger.decide(run, "resolved", f"{said}, on {found.host}")
    ledger.save(run)
    ledger.queue.add(run)


def _fail(ledger: Ledger, run: Run, reason: str) -> None:
    ledger.end(run, Outcome(RunStateName.FAILED, reason, FailureCategory.CONFIGURATION))


def waits_for(ledger: Ledger, run: Run) -> str:
    """Say what a run with unresolved references waits for."""
    missing = [each for each in run.references if each.field not in run.found]
    text = f"waits for {listed([_said(ledger, each, state=True) for each in missing])}"
    return f"{text}; telemetry does not answer: {ledger.unanswered}" if ledger.unanswered else text


def _said(ledger: Ledger, reference: Reference, *, state: bool = False) -> str:
    source = ledger.runs[reference.run]
    which = f"checkpoint of step {reference.wanted}" if reference.wanted.isdigit() else f"{reference.wanted} checkpoint"
    return f"the {which} of {source.name} ({source.short}{f', {source.state}' if state else ''})"


def _told(saved: Sequence[SavedCheckpoint]) -> str:
    """List the newest checkpoints of a run."""
    named = [f"step {each.step}{' (best)' if each.best else ''}" for each in saved][-_CHECKPOINTS_NAMED:]
    older = f"{len(saved) - len(named)} older and " if len(saved) > len(named) else ""
    return f"{older}{', '.join(named)}" if named else "no checkpoint"
