"""The scheduler's state machine: events and commands in, instructions out. No sockets, files or clocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

from mosaic_bus.commands import Describe, Forget, Stop
from mosaic_bus.messages import AttemptPhase, FailureCategory, RunStateName
from mosaic_bus.refusals import RefusalCode
from mosaic_services.scheduler import events, outcomes, references, requests
from mosaic_services.scheduler import instructions as todo
from mosaic_services.scheduler.ledger import Ledger
from mosaic_services.scheduler.model import NOT_BEGUN, NOT_TAKEN, Attempt, Ending, Host, Run
from mosaic_services.scheduler.outcomes import Outcome
from mosaic_services.scheduler.placement import Demand
from mosaic_services.scheduler.schema import ConfigSchema
from mosaic_services.scheduler.validation import check_config
from mosaic_services.scheduler.wording import said_of
from mosaic_services.settings.model import SchedulerSettings

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from mosaic_bus.commands import Command
    from mosaic_bus.errors import CommandRefusedError
    from mosaic_bus.messages import AttemptReport, Model
    from mosaic_services.config_fields import Field

__all__ = ["Machine"]

Result = TypeVar("Result", bound="Model")

SILENT_AFTER_S = 10.0
# An attempt is gone if its host has not listed it for this many seconds, in at least so many reports.
VANISHED_AFTER_S = 10.0
VANISHED_REPORTS = 2
# The same for an attempt that is being stopped and may never have arrived: longer than a command can be in transit.
SETTLED_AFTER_S = 5.0
# The same if the host never answered the command to stop it.
UNANSWERED_AFTER_S = 30.0
# Two reports count as two only if they are this many seconds apart.
MISSING_FOR_S = 0.5
DESCRIBE_AGAIN_S = 10.0
# A gap between two ticks longer than this means that this process was suspended; hosts were not silent.
SLEPT_S = 5.0

_PHASES = list(AttemptPhase)
_NOT_YET_RUNNING = (None, AttemptPhase.PREPARING, AttemptPhase.STARTING)


class Machine:
    """Decides about all runs, on what the `ledger` knows."""

    def __init__(
        self,
        runs: Iterable[Run],
        at: events.Instant,
        tuning: SchedulerSettings | None = None,
        settings: Mapping[str, str] | None = None,
        version: int = 0,
    ) -> None:
        self.tuning = tuning or SchedulerSettings()
        self.ledger = Ledger(at, self.tuning, settings, version)
        self.ledger.restore(runs)
        self._ticked_at = at.mono

    def handle(self, event: events.Event) -> list[todo.Instruction]:
        """Handle an event; return the instructions to carry out, in order."""
        ledger = self.ledger
        ledger.begin(event.at)
        match event:
            case events.HostReported():
                self._host_reported(event)
            case events.Answered():
                self._answered(event)
            case events.Described():
                self._described(event)
            case events.CheckpointsKnown():
                references.resolve(ledger, event)
                ledger.place()
            case events.Withdrawn():
                if run := ledger.runs.get(event.run):
                    ledger.drop(run)
                    ledger.place()
            case events.Deleted():
                if run := ledger.runs.get(event.run):
                    ledger.forget(run)
            case events.Tick():
                self._tick(event)
            case _:
                raise TypeError(f"no such event: {event!r}")
        return ledger.out

    def execute(self, command: Command[Result], at: events.Instant) -> tuple[Result, list[todo.Instruction]]:
        """Execute a client's command; return its result and the instructions. Raise CommandRefusedError."""
        self.ledger.begin(at)
        return cast("Result", requests.execute(self.ledger, command)), self.ledger.out

    # ── what hosts answer ───────────────────────────────────────────────────────────────────────

    def _answered(self, event: events.Answered) -> None:
        found = self.ledger.open_attempt(event.host, event.command.run, event.command.attempt)
        if found is None:
            return
        run, attempt = found
        if isinstance(event.command, Stop):
            if event.refusal is None:
                self._stop_acknowledged(attempt)
        elif event.refusal is None:
            self._acknowledge(attempt)
        elif attempt.phase is None:  # A host that has listed the attempt has it, even if it refuses a repeated offer.
            self._place_refused(run, attempt, event.refusal)

    def _acknowledge(self, attempt: Attempt) -> None:
        attempt.seen_at = self.ledger.at.mono
        attempt.missing_reports = 0
        attempt.missing_since = None
        if not attempt.acknowledged:
            attempt.acknowledged = True
            attempt.accepted_at = self.ledger.at.mono
            self.ledger.hosts[attempt.host].took(attempt)
            self.ledger.save_attempt(attempt)

    def _place_refused(self, run: Run, attempt: Attempt, refusal: CommandRefusedError) -> None:
        if refusal.code not in outcomes.NOT_NOW:
            self.ledger.end(run, outcomes.of_refusal(refusal, attempt.host, run.ending))
        elif not attempt.acknowledged and run.ending is None:
            # A host that accepted it may refuse a repeated offer. Reports settle an attempt that is being stopped.
            self.ledger.defer(run, attempt, refusal)
        self.ledger.place()

    @staticmethod
    def _stop_acknowledged(attempt: Attempt) -> None:
        if not attempt.stop_acknowledged:
            attempt.stop_acknowledged = True
            # Only later reports can show that the host does not have it.
            attempt.missing_reports = 0
            attempt.missing_since = None

    # ── what hosts report ───────────────────────────────────────────────────────────────────────

    def _host_reported(self, event: events.HostReported) -> None:
        ledger = self.ledger
        host = ledger.host(event.state.host)
        if not host.listens_to(event.state, event.at.mono):
            return
        host.report(event.state, event.at.mono)
        if host.silent:
            host.silent = False
            self._tell_silence(host, f"host {host.name} reports again")
        for report in event.state.attempts:
            self._attempt_reported(host, report)
        for key, attempt in list(host.placed.items()):
            if key not in host.listed:
                self._attempt_missing(host, attempt)
        for key, attempt in list(host.unsettled.items()):
            if key not in host.listed and self._never_arrives(host, attempt):
                ledger.settle(attempt, NOT_BEGUN)
        self._fetch_descriptions(host)
        ledger.place()

    def _attempt_reported(self, host: Host, report: AttemptReport) -> None:
        ledger = self.ledger
        self._return_to_host(host, report)
        found = ledger.open_attempt(host.name, report.run, report.attempt)
        if found is not None:
            run, attempt = found
            self._acknowledge(attempt)
            if report.phase is AttemptPhase.ENDED:
                attempt.phase, attempt.exit = report.phase, report.exit
                if report.exit is not None and report.exit.started_at is not None:
                    attempt.started_at = run.started_at = report.exit.started_at
                ledger.end(run, outcomes.of_exit(report.exit, run.ending, host.name))
            else:
                self._follow(run, attempt, report)
                return
        if report.phase is AttemptPhase.ENDED:
            ledger.send(host.name, Forget(run=report.run, attempt=report.attempt))
        else:
            known = ledger.runs.get(report.run)
            reason = f"the run {said_of(known.state)} already" if known and known.final else "it was given up"
            ledger.send_stop(host.name, report.run, report.attempt, reason)

    def _return_to_host(self, host: Host, report: AttemptReport) -> None:
        """Accept an attempt that the host refused and reports now: an earlier offer had arrived."""
        run = self.ledger.runs.get(report.run)
        attempt = run.attempts[-1] if run and run.attempts else None
        if run is None or attempt is None or attempt.begun:
            return
        if (attempt.number, attempt.host) == (report.attempt, host.name):
            if run.final:
                self.ledger.settle(attempt, run.state.value)
            else:
                self.ledger.return_to_host(run, attempt)

    def _never_arrives(self, host: Host, attempt: Attempt) -> bool:
        """Whether an earlier offer of a refused attempt can no longer arrive; called for each report without it."""
        if attempt.refused_as == RefusalCode.STOPPING and host.state is not None and host.state.draining:
            return True
        return self._missing_for_good(attempt) and self.ledger.at.mono - attempt.offered_at > SETTLED_AFTER_S

    def _follow(self, run: Run, attempt: Attempt, report: AttemptReport) -> None:
        """Update a run from its attempt's phase, which never goes back."""
        ledger = self.ledger
        if attempt.phase is not None and _PHASES.index(report.phase) < _PHASES.index(attempt.phase):
            return
        changed = run.detail != report.detail
        if attempt.phase is not report.phase:
            attempt.phase = report.phase
            ledger.save_attempt(attempt)
        if report.started_at is not None and attempt.started_at is None:
            attempt.started_at = run.started_at = report.started_at
            ledger.save_attempt(attempt)
            ledger.save(run)
            changed = True
        run.detail = report.detail
        for warning in report.warnings:
            if warning not in attempt.warned:
                attempt.warned |= {warning}
                ledger.decide(run, "warning", warning)
        before = (run.state, run.reason)
        if run.ending is not None:
            ledger.send_stop(attempt.host, attempt.run, attempt.number, run.ending.reason)
        else:
            ledger.move(run, *_state_of(run, attempt))
        if changed and before == (run.state, run.reason):
            ledger.publish(run)

    def _attempt_missing(self, host: Host, attempt: Attempt) -> None:
        """Decide about an attempt that a report does not list: in transit, gone, or never arrived."""
        ledger, now = self.ledger, self.ledger.at.mono
        run = ledger.runs[attempt.run]
        if not self._missing_for_good(attempt):
            return
        unseen_for = now - max(attempt.seen_at, attempt.offered_at)
        if run.ending is not None:
            if unseen_for > (SETTLED_AFTER_S if attempt.stop_acknowledged else UNANSWERED_AFTER_S):
                ledger.end(run, Outcome(run.ending.state, run.ending.reason, run.ending.category))
        elif attempt.acknowledged and unseen_for > VANISHED_AFTER_S:
            reason = f"host {host.name} no longer knows this attempt"
            ledger.end(run, Outcome(RunStateName.FAILED, reason, FailureCategory.INFRASTRUCTURE))

    def _missing_for_good(self, attempt: Attempt) -> bool:
        """Count a report without an attempt. One may have been late, so two are needed, some time apart."""
        now = self.ledger.at.mono
        attempt.missing_reports += 1
        if attempt.missing_since is None:
            attempt.missing_since = now
        return attempt.missing_reports >= VANISHED_REPORTS and now - attempt.missing_since >= MISSING_FOR_S

    # ── what workers say of themselves ──────────────────────────────────────────────────────────

    def _fetch_descriptions(self, host: Host) -> None:
        ledger = self.ledger
        for (worker, profile), environment in host.environments.items():
            key = (worker, profile, environment.fingerprint)
            if environment.status != "installed" or key in ledger.schemas:
                continue
            asked = ("describe", f"{worker}/{profile}/{environment.fingerprint}", 0)
            if ledger.at.mono - host.sent.get(asked, float("-inf")) >= DESCRIBE_AGAIN_S:
                host.sent[asked] = ledger.at.mono
                command = Describe(worker=worker, profile=profile)
                ledger.out.append(todo.FetchDescription(host.name, command, environment.fingerprint))

    def _described(self, event: events.Described) -> None:
        ledger, told = self.ledger, event.description
        ledger.schemas[told.worker, told.profile, event.fingerprint] = ConfigSchema(
            told.config_schema, told.algorithms, told.environments
        )
        placed = (ledger.runs[run] for host in ledger.hosts.values() for run, _ in host.placed)
        for run in [*ledger.queue, *placed]:
            fits = (run.spec.worker, run.spec.profile) == (told.worker, told.profile)
            # It may have ended in this loop, with a run that it comes after.
            if fits and not run.final and run.checked != event.fingerprint and run.ending is None:
                self._check_config(run)
        ledger.place()

    def _check_config(self, run: Run) -> None:
        """Check the config of a run that was accepted before its worker was described."""
        ledger = self.ledger
        attempt = run.current
        hosts = ledger.hosts.values() if attempt is None else [ledger.hosts[attempt.host]]
        # A host that has the run has its config, too.
        checked = check_config(run.spec, hosts, ledger.schemas, arrange=attempt is None)
        reason = f"invalid configuration: {'; '.join(map(str, checked.problems))}"
        if not checked.problems:
            if checked.fingerprint:
                run.checked = checked.fingerprint
                run.spec = checked.arranged(run.spec)
                for sentence in checked.moved:
                    ledger.decide(run, "warning", sentence)
                self._keep_references(run, {field for field, _ in checked.references})
                ledger.save(run)
        elif attempt is None:
            ledger.end(run, Outcome(RunStateName.FAILED, reason, FailureCategory.CONFIGURATION))
        elif attempt.phase in _NOT_YET_RUNNING:
            ledger.stop(run, attempt, Ending(RunStateName.FAILED, reason, FailureCategory.CONFIGURATION))

    def _keep_references(self, run: Run, fields: set[Field]) -> None:
        """Drop references in fields that turn out not to take a path."""
        if run.inputs or all(each.field in fields for each in run.references):
            return
        run.references = tuple(each for each in run.references if each.field in fields)
        run.found = {field: found for field, found in run.found.items() if field in fields}
        if not run.references and run.id in self.ledger.queue.awaiting:
            self.ledger.queue.add(run)

    # ── time ────────────────────────────────────────────────────────────────────────────────────

    def _tick(self, event: events.Tick) -> None:
        ledger, now = self.ledger, event.at.mono
        passed, self._ticked_at = now - self._ticked_at, now
        for host in ledger.hosts.values():
            if event.deaf or passed > SLEPT_S:
                host.heard_at = min(now, host.heard_at + passed)
            self._watch(host)
            if not host.silent:
                self._repeat_commands(host)
        ledger.wake()
        ledger.place()
        ledger.republish()

    def _watch(self, host: Host) -> None:
        """Mark a silent host, and give up its runs after too long a silence."""
        ledger = self.ledger
        silent_for = ledger.at.mono - host.heard_at
        if silent_for > SILENT_AFTER_S and not host.silent:
            host.silent = True
            self._tell_silence(host, f"host {host.name} silent for {silent_for:.0f} s")
        if silent_for > self.tuning.lost_after_s:
            for attempt in list(host.placed.values()):
                reason = f"host {host.name} silent for {silent_for:.0f} s; what became of the attempt is not known"
                ledger.end(ledger.runs[attempt.run], Outcome(RunStateName.LOST, reason))
            for attempt in list(host.unsettled.values()):
                # The host refused it, so it may go elsewhere; a new number avoids two attempts of one number.
                ledger.settle(attempt, NOT_TAKEN)

    def _tell_silence(self, host: Host, reason: str) -> None:
        for attempt in host.placed.values():
            run = self.ledger.runs[attempt.run]
            self.ledger.decide(run, "host", reason)
            self.ledger.publish(run)

    def _repeat_commands(self, host: Host) -> None:
        """Repeat commands whose effect no report has shown yet."""
        ledger = self.ledger
        for key, attempt in host.placed.items():
            run = ledger.runs[attempt.run]
            if run.ending is not None:
                ledger.send_stop(host.name, attempt.run, attempt.number, run.ending.reason)
            elif key not in host.listed and self._may_be_on_its_way(attempt):
                ledger.send_place(run, attempt)

    def _may_be_on_its_way(self, attempt: Attempt) -> bool:
        """Whether to offer an attempt again: not if the host had it, or accepted it long ago and lost it."""
        if attempt.phase is not None:
            return False
        return not attempt.acknowledged or self.ledger.at.mono - attempt.accepted_at < VANISHED_AFTER_S


def _state_of(run: Run, attempt: Attempt) -> tuple[RunStateName, str]:
    """Derive a run's state and reason from the phase that its host reports."""
    host = attempt.host
    environments = ["/".join(each) for each in Demand.of(run.spec).environments]
    match attempt.phase:
        case AttemptPhase.PREPARING:
            return RunStateName.PREPARING, f"{host} prepares {', '.join(environments)}"
        case AttemptPhase.RUNNING:
            return RunStateName.RUNNING, f"runs on {host}"
        case AttemptPhase.STOPPING:
            return RunStateName.STOPPING, f"{host} is stopping it"
        case _:
            return RunStateName.STARTING, f"starts on {host}"
