"""Explains why a run is pending, placed where it is, stopped, retried or failed, from recorded decisions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mosaic_bus.commands import WhyResult
from mosaic_bus.messages import RunStateName
from mosaic_bus.wording import duration
from mosaic_services.scheduler.placement import Demand, could_take
from mosaic_services.scheduler.wording import amounts, listed, said_of

if TYPE_CHECKING:
    from mosaic_bus.commands import Decision
    from mosaic_services.scheduler.ledger import Ledger
    from mosaic_services.scheduler.model import Attempt, Host, Run

__all__ = ["explain", "position"]

_HOLDERS_NAMED = 6


def explain(ledger: Ledger, run: Run, decisions: list[Decision], now: float) -> WhyResult:
    """Answer in one sentence, with the facts behind it."""
    state = ledger.render(run, now)
    place = position(ledger, run)
    if run.state is RunStateName.QUEUED:
        facts = _why_pending(ledger, run, place, decisions)
    elif run.final:
        facts = _why_ended(run, decisions)
    else:
        facts = _why_here(run, decisions)
    failed = next((each for each in reversed(run.attempts) if each.exit and each.exit.last_lines), None)
    return WhyResult(
        run=state,
        answer=_answer(run, state.reason),
        facts=[*facts, *_history(run)],
        position=place,
        log=failed.exit.last_lines if failed and failed.exit else [],
        decisions=decisions,
    )


def position(ledger: Ledger, run: Run) -> int | None:
    """The place in the queue, from 1, of a run that waits for room only."""
    if ledger.queue.group(run) is None:
        return None
    return 1 + sum(each.order < run.order for each in ledger.queue.ready())


def _answer(run: Run, reason: str) -> str:
    what = f"{run.name} ({run.short})"
    if run.state is RunStateName.QUEUED:
        return f"{what} is queued: {reason}"
    many = f" in attempt {run.begun} of {run.allowed}" if run.spec.retries.max and run.begun else ""
    category = f"{run.category}: " if run.category else ""
    return f"{what} {said_of(run.state)}{many}: {category}{reason}"


# ── pending ─────────────────────────────────────────────────────────────────────────────────────────


def _why_pending(ledger: Ledger, run: Run, place: int | None, decisions: list[Decision]) -> list[str]:
    facts = [f"it asks for {_asks(run)}"]
    if place is not None:
        waiting = sum(1 for _ in ledger.queue.ready())
        ahead = [each for each in ledger.queue.ready() if each.order < run.order]
        first = [f"{each.name} ({each.short}, priority {each.priority})" for each in sorted(ahead, key=_order)[:3]]
        before = f"; first: {', '.join(first)}" if first else ""
        facts.append(f"it is number {place} of {waiting} that wait for room{before}")
        facts += _holders(ledger, run)
        kept = [name for name, each in ledger.queue.kept.items() if each is run]
        if kept:
            facts.append(f"{listed(kept)} is kept free for it, since others have overtaken it for too long")
    if run.id in ledger.queue.blocked:
        facts += [f"{each.name} ({each.short}) {said_of(each.state)}: {each.reason}" for each in ledger.unmet(run)[:10]]
    facts += [each.reason for each in decisions if each.event == "resolved"]
    if ledger.paused:
        facts.append(f"the queue is paused ({ledger.paused}): mosaic queue resume")
    return facts


def _order(run: Run) -> tuple[int, int]:
    return run.order


def _asks(run: Run) -> str:
    tags = f", on a host with {', '.join(run.spec.requires)}" if run.spec.requires else ""
    priority = f", at priority {run.priority}" if run.priority else ""
    uses = "".join(f" and {use.worker}/{use.profile}" for use in run.spec.uses)
    return f"{amounts(run.spec.resources)} with worker {run.spec.worker}/{run.spec.profile}{uses}{tags}{priority}"


def _holders(ledger: Ledger, run: Run) -> list[str]:
    """Which runs hold what the run waits for, by host."""
    demand = Demand.of(run.spec, run.inputs)
    able = [host for host in ledger.hosts.values() if could_take(demand, host)]
    return [f"{host.name}: {_held(ledger, host)}" for host in able] or ["no known host could take it"]


def _held(ledger: Ledger, host: Host) -> str:
    held = []
    for run_id, _ in host.placed:
        run = ledger.runs[run_id]
        attempt = run.attempts[-1]
        gpus = f" (GPU {', '.join(attempt.gpus)})" if attempt.gpus else ""
        held.append(f"{run.name} ({run.short}) holds {amounts(attempt.resources)}{gpus}")
    return listed(held, _HOLDERS_NAMED) if held else "nothing of ours runs there"


# ── here, and ended ─────────────────────────────────────────────────────────────────────────────────


def _why_here(run: Run, decisions: list[Decision]) -> list[str]:
    facts = [each.reason for each in decisions if each.event == "placed"][-1:]
    facts += [each.reason for each in decisions if each.event == "resolved"]
    if attempt := run.current:
        if attempt.resume:
            step = "" if attempt.resume.step is None else f" of step {attempt.resume.step}"
            facts.append(f"it resumes from the checkpoint{step}: {attempt.resume.path}")
        facts += sorted(attempt.warned)
    if run.ending is not None:
        facts.insert(0, f"it is being stopped: {run.ending.reason}")
    return facts


def _why_ended(run: Run, decisions: list[Decision]) -> list[str]:
    facts = [each.reason for each in decisions if each.event == "given up"][-1:]
    attempt = run.attempts[-1] if run.attempts else None
    if attempt and attempt.exit and attempt.exit.phase:
        facts.insert(0, f"it ended while it was {attempt.exit.phase} on {attempt.host}")
    if attempt and attempt.exit and attempt.exit.limit:
        facts.append(f"its {attempt.exit.limit} limit stopped it: raise limits in the spec, or ask for less work")
    return facts


def _history(run: Run) -> list[str]:
    """One line for each earlier attempt."""
    return [_told(attempt) for attempt in run.attempts[:-1] if attempt.begun]


def _told(attempt: Attempt) -> str:
    report = attempt.exit
    how = report.reason if report else attempt.outcome
    took = ""
    if report and report.started_at is not None:
        took = f", {duration(report.ended_at - report.started_at)}"
    saved = report.checkpoint if report else None
    checkpoint = f"; it saved a checkpoint at step {saved.step}" if saved else ""
    told = f": {how}{took}{checkpoint}" if how != attempt.outcome else ""
    return f"attempt {attempt.number} on {attempt.host} {attempt.outcome}{told}"
