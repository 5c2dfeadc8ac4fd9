"""The scheduler's knowledge, and the elementary steps of every decision.

Each step changes what is known and adds the instructions that follow from it; `machine.py` decides which steps to take.
"""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING

from mosaic_bus.commands import Forget, Place, Stop
from mosaic_bus.messages import RunStateName
from mosaic_services.scheduler import instructions as todo
from mosaic_services.scheduler import references
from mosaic_services.scheduler.model import REFUSED, Attempt, Ending, Host, Run
from mosaic_services.scheduler.outcomes import Outcome
from mosaic_services.scheduler.publishing import REPUBLISH_S, Publications
from mosaic_services.scheduler.queue import Queue
from mosaic_services.scheduler.retries import Retry, judge, rest_s
from mosaic_services.scheduler.wording import listed, said_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mosaic_bus.errors import CommandRefusedError
    from mosaic_bus.messages import RunState
    from mosaic_services.scheduler.events import Instant
    from mosaic_services.scheduler.placement import Choice
    from mosaic_services.scheduler.validation import Schemas
    from mosaic_services.settings.model import SchedulerSettings

__all__ = ["REPEAT_S", "Ledger"]

# Seconds after which a command is repeated, until a report shows its effect.
REPEAT_S = 2.0


class Ledger:
    """Runs, hosts, queue and schemas, and the instructions that the current event has caused."""

    def __init__(
        self, at: Instant, tuning: SchedulerSettings, settings: Mapping[str, str] | None = None, version: int = 0
    ) -> None:
        self.at = at
        self._longest_rest_s = tuning.longest_retry_delay_s
        self.publications = Publications(version)
        self.runs: dict[str, Run] = {}
        self.hosts: dict[str, Host] = {}
        self.queue = Queue(tuning.keep_free_after_s)
        self.schemas: Schemas = {}
        self.out: list[todo.Instruction] = []
        # Settings of users: why the queue is paused, which hosts are drained.
        self.settings = dict(settings or {})
        # Group -> its runs, oldest first. Run -> the run that repeats it.
        self.groups: dict[str, dict[str, Run]] = {}
        self.replaced: dict[str, str] = {}
        # Run -> runs that wait for it.
        self._dependents: dict[str, list[str]] = {}
        # Run -> when telemetry was last asked for its checkpoints; ended run -> since when its journal is known not to
        # be stored completely; and why telemetry did not answer, if it did not.
        self.fetched: dict[str, float] = {}
        self.unsettled: dict[str, float] = {}
        self.unanswered = ""
        self._next_seq = 1

    def begin(self, at: Instant) -> None:
        """Start to handle another event or command."""
        self.at, self.out = at, []

    # ── knowing ─────────────────────────────────────────────────────────────────────────────────

    def restore(self, runs: Iterable[Run]) -> None:
        """Load the runs from the store."""
        ordered = sorted(runs, key=lambda each: each.seq)
        for run in ordered:
            self._enter(run)
        for run in ordered:
            self._restore(run)

    def _restore(self, run: Run) -> None:
        refused = run.attempts[-1] if run.attempts and run.attempts[-1].outcome == REFUSED else None
        if refused is not None:
            refused.offered_at = self.at.mono
            self.host(refused.host).unsettled[refused.key] = refused
        if run.final:
            return
        self.publications.published(run.id, self.at.mono - REPUBLISH_S)
        if attempt := run.current:
            attempt.seen_at = attempt.accepted_at = attempt.offered_at = self.at.mono
            self.host(attempt.host).placed[attempt.key] = attempt
        elif refused is not None:
            self.queue.deferred[run.id] = run
        elif run.next_attempt_at is not None:
            # The wall clock may have jumped: never rest longer than the retry's own delay.
            left = min(max(0.0, run.next_attempt_at - self.at.wall), rest_s(run, self._longest_rest_s))
            run.rests_until = self.at.mono + left
            self.queue.resting[run.id] = run
        else:
            self._queue(run)

    def _enter(self, run: Run) -> None:
        self.runs[run.id] = run
        self.publications.changed(run)
        self._next_seq = max(self._next_seq, run.seq + 1)
        if run.spec.group:
            self.groups.setdefault(run.spec.group, {})[run.id] = run
        if run.spec.replaces:
            self.replaced[run.spec.replaces] = run.id
        for each in run.after:
            self._dependents.setdefault(each, []).append(run.id)

    def _queue(self, run: Run) -> None:
        """Queue a run, or let it wait for other runs or their checkpoints."""
        if self.unmet(run):
            self.queue.blocked[run.id] = run
        elif run.references and not run.inputs:
            self.queue.awaiting[run.id] = run
        else:
            self.queue.add(run)

    def next_seq(self) -> int:
        """The sequence number of the next run."""
        return self._next_seq

    def unmet(self, run: Run) -> list[Run]:
        """The runs that a run waits for."""
        first = (self.runs.get(each) for each in run.after)
        return [each for each in first if each is not None and each.state is not RunStateName.SUCCEEDED]

    @property
    def paused(self) -> str:
        """Why the queue is paused; empty if it is not."""
        return self.settings.get("paused", "")

    def set(self, key: str, value: str) -> None:
        """Change a setting; an empty value removes it."""
        if value:
            self.settings[key] = value
        else:
            self.settings.pop(key, None)
        self.out.append(todo.SaveSetting(key, value))

    def host(self, name: str) -> Host:
        """The host of that name; a new one counts as heard just now."""
        if name not in self.hosts:
            drained = self.settings.get(f"drained:{name}", "")
            self.hosts[name] = Host(name, heard_at=self.at.mono, drained=drained)
            self.hosts = dict(sorted(self.hosts.items()))
        return self.hosts[name]

    def open_attempt(self, host: str, run: str, number: int) -> tuple[Run, Attempt] | None:
        """The current attempt of a run, if it has that number and is on that host."""
        found = self.runs.get(run)
        attempt = found.current if found else None
        if found is None or attempt is None or attempt.number != number or attempt.host != host:
            return None
        return found, attempt

    def render(self, run: Run, now: float) -> RunState:
        """Make a run's state message, with the reason as of now."""
        if run.state is RunStateName.QUEUED:
            return run.render(self.waits_for(run, now))
        if not run.final and run.host and (host := self.hosts[run.host]).silent:
            return run.render(f"host {host.name} silent for {now - host.heard_at:.0f} s; before that: {run.reason}")
        return run.render()

    def waits_for(self, run: Run, now: float) -> str:
        """Describe what a queued run waits for."""
        if run.id in self.queue.deferred:
            return self.hosts[run.attempts[-1].host].held(now) or run.reason
        if run.id in self.queue.blocked:
            first = [f"{each.name} ({each.short}, {each.state})" for each in self.unmet(run)]
            return f"waits for {listed(first)} to succeed"
        if run.id in self.queue.resting:
            left = math.ceil(max(0.0, run.rests_until - now))
            return f"{run.reason}: {left} s left" if left else run.reason
        if run.id in self.queue.awaiting:
            return references.waits_for(self, run)
        group = self.queue.group(run)
        return group.wait.reason if group else run.reason

    # ── deciding ────────────────────────────────────────────────────────────────────────────────

    def decide(self, run: Run, event: str, reason: str) -> None:
        """Record a decision; the same one twice in a row is recorded once."""
        if run.last_decision == (event, reason):
            return
        run.last_decision = (event, reason)
        run.decisions += 1
        self.out.append(todo.RecordDecision(run.id, run.decisions, self.at.wall, event, reason))

    def enqueue(self, runs: list[Run]) -> None:
        """Add new runs, which may wait for each other."""
        for run in runs:
            self._enter(run)
        for run in runs:
            self._queue(run)
            self.out.append(todo.SaveRun(copy.copy(run), new=True))

    def place(self) -> None:
        """Place every run that can start, in order."""
        references.fetch(self)
        hosts = self.hosts.values()
        for group in self.queue.place(hosts, self.at.mono, self.paused, self._start):
            for run in group.runs.values():
                self.decide(run, "queued", group.wait.reason)
                self.publish_soon(run)

    def move(self, run: Run, state: RunStateName, reason: str, event: str = "") -> None:
        """Change the state or the reason of a run that is not final."""
        if (run.state, run.reason) == (state, reason):
            return
        run.state, run.reason, run.changed_at = state, reason, self.at.wall
        self.decide(run, event or state.value, reason)
        self.save(run)
        self.publish(run)

    def _start(self, run: Run, choice: Choice) -> None:
        """Make an attempt on a host for a run that has left the queue."""
        if run.attempts and not run.attempts[-1].begun:
            run.attempts.pop()
        host, number = choice.host, len(run.attempts) + 1
        attempt = Attempt(run.id, number, host.name, run.spec.resources, self.at.wall, choice.gpus, run.checkpoint)
        run.attempts.append(attempt)
        run.host, run.next_attempt_at = host.name, None
        host.placed[attempt.key] = attempt
        state = RunStateName.STARTING if choice.installed else RunStateName.PREPARING
        gpus = f" with GPU {', '.join(choice.gpus)}" if choice.gpus else ""
        self.move(run, state, f"placed on {host.name}{gpus}: {choice.reason}", event="placed")
        self.save_attempt(attempt)
        self.send_place(run, attempt)

    def defer(self, run: Run, attempt: Attempt, refusal: CommandRefusedError) -> None:
        """Take back a run that its host refused for now; it waits until the host certainly does not have it."""
        host = self.hosts[attempt.host]
        host.placed.pop(attempt.key, None)
        host.sent.pop(("place", *attempt.key), None)
        host.unsettled[attempt.key] = attempt
        host.hold(attempt, refusal.message, self.at.mono)
        attempt.outcome, attempt.refused_as = REFUSED, refusal.code
        attempt.missing_reports, attempt.missing_since = 0, None
        self.save_attempt(attempt)
        run.host, run.detail = None, ""
        self.queue.deferred[run.id] = run
        self.move(run, RunStateName.QUEUED, host.held(self.at.mono), event="refused")

    def settle(self, attempt: Attempt, outcome: str) -> None:
        """Settle a refused attempt; requeue its run if it was deferred."""
        self.hosts[attempt.host].unsettled.pop(attempt.key, None)
        attempt.outcome = outcome
        self.save_attempt(attempt)
        if (run := self.runs.get(attempt.run)) and run.id in self.queue.deferred:
            self.queue.add(run)

    def return_to_host(self, run: Run, attempt: Attempt) -> None:
        """Return a run to a host that refused it and reports it now: an earlier offer had arrived."""
        host = self.hosts[attempt.host]
        self.queue.remove(run)
        host.unsettled.pop(attempt.key, None)
        host.placed[attempt.key] = attempt
        attempt.outcome = ""
        run.host = host.name
        self.move(run, RunStateName.STARTING, f"{host.name} has it after all", event="placed")

    def stop(self, run: Run, attempt: Attempt, ending: Ending) -> None:
        """Start to stop an attempt; its host reports when it has stopped."""
        run.ending = ending
        self.move(run, RunStateName.STOPPING, ending.reason)
        self.send_stop(attempt.host, attempt.run, attempt.number, ending.reason)

    def end(self, run: Run, outcome: Outcome) -> None:
        """End a run, or queue it again if it may be retried."""
        if attempt := run.current:
            self.hosts[attempt.host].placed.pop(attempt.key, None)
            attempt.outcome = outcome.state.value
            attempt.ended_at = outcome.ended_at or self.at.wall
            self.save_attempt(attempt)
            verdict = judge(run, outcome, self._longest_rest_s)
            if isinstance(verdict, Retry):
                self._rest(run, outcome, verdict)
                return
            if verdict.reason:
                self.decide(run, "given up", verdict.reason)
        self._finish(run, outcome)
        ended = [run]
        while ended:
            ended += self._tell_dependents(ended.pop())

    def _rest(self, run: Run, outcome: Outcome, retry: Retry) -> None:
        """Let a run wait for its next attempt."""
        run.rests_until = self.at.mono + retry.delay_s
        run.next_attempt_at = self.at.wall + retry.delay_s
        self.queue.resting[run.id] = run
        run.host, run.detail = None, outcome.detail
        category = f"{outcome.category}: " if outcome.category else ""
        said = f"attempt {run.begun} {outcome.state}: {category}{outcome.reason}; {retry.reason}"
        self.move(run, RunStateName.QUEUED, said, event="retry")

    def wake(self) -> None:
        """Queue the runs whose retry delay is over."""
        for run in self.queue.awake(self.at.mono):
            self.queue.add(run)

    def _finish(self, run: Run, outcome: Outcome) -> None:
        self.queue.remove(run)
        run.category, run.exit_code, run.detail = outcome.category, outcome.exit_code, outcome.detail
        run.ended_at, run.next_attempt_at = outcome.ended_at or self.at.wall, None
        self.move(run, outcome.state, outcome.reason)
        self.publications.drop(run.id)

    def _tell_dependents(self, run: Run) -> list[Run]:
        """Release the runs that waited only for this one, or cancel them if it failed; return the cancelled ones."""
        ended = []
        for each in self._dependents.pop(run.id, ()):
            waiting = self.queue.blocked.get(each)
            if waiting is None:
                continue
            if run.state is not RunStateName.SUCCEEDED:
                reason = f"it depends on {run.name} ({run.short}), which {said_of(run.state)}"
                self._finish(waiting, Outcome(RunStateName.CANCELLED, reason))
                ended.append(waiting)
            elif not self.unmet(waiting):
                self.queue.remove(waiting)
                self._queue(waiting)
                self.decide(waiting, "released", "the runs that it depends on have succeeded")
                self.publish_soon(waiting)
        return ended

    def drop(self, run: Run) -> None:
        """Undo a submission that could not be saved."""
        self.queue.remove(run)
        for attempt in run.attempts:
            self.hosts[attempt.host].placed.pop(attempt.key, None)
        self.publications.drop(run.id)
        self.runs.pop(run.id, None)
        self.replaced.pop(run.spec.replaces, None)
        if members := self.groups.get(run.spec.group):
            members.pop(run.id, None)
            if not members:
                del self.groups[run.spec.group]
        self._dependents.pop(run.id, None)
        for waiting in list(self.queue):
            if run.id in waiting.after or any(each.run == run.id for each in waiting.references):
                said = f"it depends on {run.name} ({run.short}), which could not be saved"
                self.end(waiting, Outcome(RunStateName.CANCELLED, said))

    def forget(self, run: Run) -> None:
        """Delete a run that has ended."""
        self.publications.changed(run)
        last = self.render(run, self.at.mono).model_copy(update={"deleted": True})
        for attempt in run.attempts:
            self.host(attempt.host).unsettled.pop(attempt.key, None)
        self.fetched.pop(run.id, None)
        self.unsettled.pop(run.id, None)
        self.drop(run)
        self.out += [todo.DeleteRun(run.id), todo.Publish(last)]

    # ── telling ─────────────────────────────────────────────────────────────────────────────────

    def save(self, run: Run) -> None:
        """Save a run."""
        self.out.append(todo.SaveRun(copy.copy(run)))

    def save_attempt(self, attempt: Attempt) -> None:
        """Save an attempt."""
        self.out.append(todo.SaveAttempt(copy.copy(attempt)))

    def publish(self, run: Run) -> None:
        """Publish the state of a run that changed."""
        self.publications.changed(run)
        self._publish(run)

    def _publish(self, run: Run) -> None:
        self.publications.published(run.id, self.at.mono)
        self.out.append(todo.Publish(self.render(run, self.at.mono)))

    def publish_first(self, run: Run, *, soon: bool) -> None:
        """Publish the state of a new run unless that was done; `soon` for one of many."""
        if run.id in self.publications:
            return
        if soon:
            self.publications.published(run.id, self.at.mono)
            self.publish_soon(run)
        else:
            self.publish(run)

    def publish_soon(self, run: Run) -> None:
        """Publish the state of a run that changed in one of the next ticks."""
        self.publications.changed(run)
        self.publications.postpone(run.id)

    def republish(self) -> None:
        """Publish postponed states, and repeat those that were not published for a while."""
        for run in self.publications.due(self.at.mono):
            self._publish(self.runs[run])

    def send_place(self, run: Run, attempt: Attempt) -> None:
        """Offer an attempt to its host."""
        place = Place(
            run=run.id,
            attempt=attempt.number,
            run_name=run.name,
            spec=run.spec,
            gpus=attempt.gpus,
            resume=attempt.resume,
            inputs=run.inputs,
        )
        if self.send(attempt.host, place):
            attempt.offered_at = self.at.mono

    def send_stop(self, host: str, run: str, number: int, reason: str) -> None:
        """Ask a host to stop an attempt."""
        self.send(host, Stop(run=run, attempt=number, reason=reason))

    def send(self, host: str, command: Place | Stop | Forget) -> bool:
        """Send a command to a host, unless it was sent less than REPEAT_S ago."""
        sent = self.hosts[host].sent
        key = (command.name, command.run, command.attempt)
        if key in sent and self.at.mono - sent[key] < REPEAT_S:
            return False
        sent[key] = self.at.mono
        self.out.append(todo.Send(host, command))
        return True
