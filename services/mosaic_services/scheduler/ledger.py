"""All that the scheduler knows, and the small steps that every decision is made of.

Each step changes what is known and adds the instructions that follow from it; `machine.py` decides which steps to take.
"""

from __future__ import annotations

import copy
from itertools import islice
from typing import TYPE_CHECKING

from mosaic_bus.messages import RunStateName
from mosaic_services.scheduler import instructions as todo
from mosaic_services.scheduler.model import REFUSED, Attempt, Ending, Host, Run
from mosaic_services.scheduler.queue import Queue

if TYPE_CHECKING:
    from mosaic_bus.messages import RunState
    from mosaic_services.scheduler.events import Instant
    from mosaic_services.scheduler.outcomes import Outcome
    from mosaic_services.scheduler.validation import Schemas

__all__ = ["REPEAT_S", "REPUBLISH_S", "Ledger"]

# A command is sent again after this long, until a report shows that it had its effect.
REPEAT_S = 2.0
REPUBLISH_S = 10.0
# So many states at most are published again in one tick, so that a long queue does not flood the bus.
_REPUBLISHED_AT_ONCE = 250


class Ledger:
    """Runs, hosts, queue and schemas, and the instructions of the event being handled."""

    def __init__(self, at: Instant) -> None:
        self.at = at
        self.runs: dict[str, Run] = {}
        self.hosts: dict[str, Host] = {}
        self.queue = Queue()
        self.schemas: Schemas = {}
        self.out: list[todo.Instruction] = []
        # Runs that are not final -> when their state was last published, longest ago first.
        self._published: dict[str, float] = {}
        # Runs whose state changed together with many others: published in the next ticks, some at a time.
        self._soon: dict[str, None] = {}

    # ── knowing ─────────────────────────────────────────────────────────────────────────────────

    def restore(self, run: Run) -> None:
        """Take a run from the store, as it was when it was last saved."""
        self.runs[run.id] = run
        refused = run.attempts[-1] if run.attempts and run.attempts[-1].outcome == REFUSED else None
        if refused is not None:
            refused.offered_at = self.at.mono
            self.host(refused.host).unsettled[refused.key] = refused
        if run.final:
            return
        self._published[run.id] = self.at.mono - REPUBLISH_S
        if attempt := run.current:
            attempt.seen_at = attempt.accepted_at = attempt.offered_at = self.at.mono
            self.host(attempt.host).placed[attempt.key] = attempt
        elif refused is not None:
            self.queue.deferred[run.id] = run
        else:
            self.queue.add(run)

    def host(self, name: str) -> Host:
        """The host of that name; one that we hear of for the first time counts as heard just now."""
        if name not in self.hosts:
            self.hosts[name] = Host(name, heard_at=self.at.mono)
            self.hosts = dict(sorted(self.hosts.items()))
        return self.hosts[name]

    def open_attempt(self, host: str, run: str, number: int) -> tuple[Run, Attempt] | None:
        """The attempt under way with that number on that host, if it is ours and its run is not final."""
        found = self.runs.get(run)
        attempt = found.current if found else None
        if found is None or attempt is None or attempt.number != number or attempt.host != host:
            return None
        return found, attempt

    def render(self, run: Run, now: float) -> RunState:
        """Say how a run is, with the reason as it is at this moment."""
        if run.id in self.queue.deferred:
            return run.render(self.hosts[run.attempts[-1].host].held(now) or None)
        if run.state is RunStateName.QUEUED:
            return run.render(self.queue.group(run).wait.reason)
        if not run.final and run.host and (host := self.hosts[run.host]).silent:
            return run.render(f"host {host.name} silent for {now - host.heard_at:.0f} s; before that: {run.reason}")
        return run.render()

    # ── deciding ────────────────────────────────────────────────────────────────────────────────

    def decide(self, run: Run, event: str, reason: str) -> None:
        """Record why; the same thing twice in a row is recorded once."""
        if run.last_decision == (event, reason):
            return
        run.last_decision = (event, reason)
        run.decisions += 1
        self.out.append(todo.RecordDecision(run.id, run.decisions, self.at.wall, event, reason))

    def enqueue(self, run: Run) -> None:
        """Take a new run in."""
        self.runs[run.id] = run
        self.queue.add(run)
        self.save(run)

    def move(self, run: Run, state: RunStateName, reason: str, event: str = "") -> None:
        """Bring a run that is not final into another state, or give it another reason."""
        if (run.state, run.reason) == (state, reason):
            return
        run.state, run.reason, run.changed_at = state, reason, self.at.wall
        self.decide(run, event or state.value, reason)
        self.save(run)
        self.publish(run)

    def start(self, run: Run, host: Host, state: RunStateName, reason: str) -> None:
        """Give a run that has left the queue to a host."""
        if run.attempts and not run.attempts[-1].begun:
            run.attempts.pop()
        number = len(run.attempts) + 1
        attempt = Attempt(run.id, number, host.name, run.spec.resources, placed_at=self.at.wall)
        run.attempts.append(attempt)
        run.host = host.name
        host.placed[attempt.key] = attempt
        self.move(run, state, f"placed on {host.name}: {reason}", event="placed")
        self.save_attempt(attempt)
        self.send_place(run, attempt)

    def defer(self, run: Run, attempt: Attempt, code: str, why: str) -> None:
        """Take a run back that its host cannot take now; until it is sure that the host has not got it, it waits."""
        host = self.hosts[attempt.host]
        host.placed.pop(attempt.key, None)
        host.sent.pop(("place", *attempt.key), None)
        host.unsettled[attempt.key] = attempt
        host.hold(attempt, why, self.at.mono)
        attempt.outcome, attempt.refused_as = REFUSED, code
        attempt.missing_reports, attempt.missing_since = 0, None
        self.save_attempt(attempt)
        run.host, run.detail = None, ""
        self.queue.deferred[run.id] = run
        self.move(run, RunStateName.QUEUED, host.held(self.at.mono), event="refused")

    def settle(self, attempt: Attempt, outcome: str) -> None:
        """Let a run that a host had refused go on, to that host or another."""
        self.hosts[attempt.host].unsettled.pop(attempt.key, None)
        attempt.outcome = outcome
        self.save_attempt(attempt)
        if (run := self.runs.get(attempt.run)) and run.id in self.queue.deferred:
            self.queue.add(run)

    def take_back(self, run: Run, attempt: Attempt) -> None:
        """Give a run back to a host that refused it and has it after all: an earlier offer had arrived."""
        host = self.hosts[attempt.host]
        self.queue.remove(run)
        host.unsettled.pop(attempt.key, None)
        host.placed[attempt.key] = attempt
        attempt.outcome = ""
        run.host = host.name
        self.move(run, RunStateName.STARTING, f"{host.name} has it after all", event="placed")

    def stop(self, run: Run, attempt: Attempt, ending: Ending) -> None:
        """Begin to stop an attempt; its host's reports say when it has stopped."""
        run.ending = ending
        self.move(run, RunStateName.STOPPING, ending.reason)
        self.send_stop(attempt.host, attempt.run, attempt.number, ending.reason)

    def finish(self, run: Run, outcome: Outcome) -> None:
        """Bring a run to its end."""
        if run.state is RunStateName.QUEUED:
            self.queue.remove(run)
        elif attempt := run.current:
            self.hosts[attempt.host].placed.pop(attempt.key, None)
            attempt.outcome = outcome.state.value
            attempt.ended_at = outcome.ended_at or self.at.wall
            self.save_attempt(attempt)
        run.category, run.exit_code, run.detail = outcome.category, outcome.exit_code, outcome.detail
        run.ended_at = outcome.ended_at or self.at.wall
        self.move(run, outcome.state, outcome.reason)
        self._published.pop(run.id, None)
        self._soon.pop(run.id, None)

    def drop(self, run: Run) -> None:
        """Undo a submission that could not be saved."""
        if run.state is RunStateName.QUEUED:
            self.queue.remove(run)
        for attempt in run.attempts:
            self.hosts[attempt.host].placed.pop(attempt.key, None)
        self._published.pop(run.id, None)
        self._soon.pop(run.id, None)
        self.runs.pop(run.id, None)

    # ── telling ─────────────────────────────────────────────────────────────────────────────────

    def save(self, run: Run) -> None:
        """Have a run stored."""
        self.out.append(todo.SaveRun(copy.copy(run)))

    def save_attempt(self, attempt: Attempt) -> None:
        """Have an attempt stored."""
        self.out.append(todo.SaveAttempt(copy.copy(attempt)))

    def publish(self, run: Run) -> None:
        """Have a run's state published."""
        self._soon.pop(run.id, None)
        self._published.pop(run.id, None)
        self._published[run.id] = self.at.mono
        self.out.append(todo.Publish(self.render(run, self.at.mono)))

    def publish_first(self, run: Run) -> None:
        """Have a run's state published unless that has been done."""
        if run.id not in self._published:
            self.publish(run)

    def publish_soon(self, run: Run) -> None:
        """Have a run's state published in one of the next ticks."""
        self._soon[run.id] = None

    def republish(self) -> None:
        """Publish what waits for it, and again what has not been published for a while."""
        due = list(islice(self._soon, _REPUBLISHED_AT_ONCE))
        for run_id, at in self._published.items():
            if at > self.at.mono - REPUBLISH_S or len(due) >= _REPUBLISHED_AT_ONCE:
                break
            due.append(run_id)
        for run_id in dict.fromkeys(due):
            self.publish(self.runs[run_id])

    def send_place(self, run: Run, attempt: Attempt) -> None:
        """Offer an attempt to its host, unless that was done a moment ago."""
        if self._due("place", attempt.host, attempt.run, attempt.number):
            attempt.offered_at = self.at.mono
            self.out.append(todo.SendPlace(attempt.host, run.id, attempt.number, run.name, run.spec))

    def send_stop(self, host: str, run: str, number: int, reason: str) -> None:
        """Ask a host to stop an attempt, unless that was done a moment ago."""
        if self._due("stop", host, run, number):
            self.out.append(todo.SendStop(host, run, number, reason))

    def send_forget(self, host: str, run: str, number: int) -> None:
        """Tell a host that an attempt need not be reported any more, unless that was done a moment ago."""
        if self._due("forget", host, run, number):
            self.out.append(todo.SendForget(host, run, number))

    def _due(self, command: str, host: str, run: str, number: int) -> bool:
        sent = self.hosts[host].sent
        key = (command, run, number)
        if key in sent and self.at.mono - sent[key] < REPEAT_S:
            return False
        sent[key] = self.at.mono
        return True
