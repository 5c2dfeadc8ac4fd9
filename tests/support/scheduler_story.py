"""Drives the scheduler's state machine in tests: events in, instructions out, with invented hosts and attempts."""

from __future__ import annotations

from mosaic_bus.commands import Decision, Description, Place, Submit
from mosaic_bus.errors import CommandRefusedError
from mosaic_bus.messages import (
    AttemptPhase,
    AttemptReport,
    EnvironmentStatus,
    ExitReport,
    Gpu,
    HostState,
    Resources,
    RunSpec,
)
from mosaic_services.scheduler import events
from mosaic_services.scheduler import instructions as todo
from mosaic_services.scheduler.machine import Machine
from mosaic_services.scheduler.why import explain


class Story:
    """A state machine, its clock, and its last instructions."""

    def __init__(self):
        self.now = 100.0
        self.clock = 1e9
        self.machine = Machine([], self.at)
        self.out = []
        self.runs = 0
        self.decisions = []
        self.answer = None

    @property
    def at(self):
        return events.Instant(self.now, self.clock + self.now)

    def feed(self, kind, *args):
        self.out = self.machine.handle(kind(self.at, *args))
        self.decisions += [each for each in self.out if isinstance(each, todo.RecordDecision)]
        return self.out

    def ask(self, command):
        """Pass a client's command to the machine; return its result, or the error that refuses it."""
        self.out = []
        try:
            self.answer, self.out = self.machine.execute(command, self.at)
        except CommandRefusedError as error:
            self.answer = error
        self.decisions += [each for each in self.out if isinstance(each, todo.RecordDecision)]
        return self.answer

    def refuse(self, run, code, message="disk full", host="local"):
        """Have a host refuse the first attempt of a run."""
        offer = Place.model_construct(run=run, attempt=1)
        return self.feed(events.Answered, host, offer, CommandRefusedError(code, message))

    def describe(self, schema, fingerprint="f", **more):
        """Have a host describe the worker `w`."""
        described = {"status": "installed", "metadata": {}, "capabilities": {}, "example_config": {}, **more}
        told = Description(worker="w", profile="default", config_schema=schema, **described)
        return self.feed(events.Described, fingerprint, told)

    def pass_time(self, seconds, *reports):
        """Advance the clock in ticks of half a second; the given hosts report every second."""
        seen = []
        for half in range(round(seconds * 2)):
            self.now += 0.5
            if half % 2:
                for report in reports:
                    seen += self.feed(events.HostReported, report)
            seen += self.feed(events.Tick)
        self.out = seen
        return seen

    def new_id(self):
        self.runs += 1
        return f"01K{self.runs:023d}"

    def submit(self, cpus=1.0, config=None, **more):
        resources = {key: more.pop(key) for key in ("memory_mb", "gpus") if key in more}
        run = self.new_id()
        spec = RunSpec(worker="w", config=config or {}, resources=Resources(cpus=cpus, **resources), **more)
        self.ask(Submit(run=run, spec=spec))
        return run

    def why(self, run):
        told = [
            Decision(at=each.at, event=each.event, reason=each.reason) for each in self.decisions if each.run == run
        ]
        return explain(self.machine.ledger, self.machine.ledger.runs[run], told, self.now)

    def restart(self, saved):
        """Continue with a new machine from the state that the old one saved."""
        runs = {each.run.id: each.run for each in saved if isinstance(each, todo.SaveRun)}
        attempts = {each.attempt.key: each.attempt for each in saved if isinstance(each, todo.SaveAttempt)}
        settings = {each.key: each.value for each in saved if isinstance(each, todo.SaveSetting) and each.value}
        for run in runs.values():
            run.attempts = [each for key, each in sorted(attempts.items()) if key[0] == run.id]
        self.machine = Machine(runs.values(), self.at, settings=settings)

    def state(self, run):
        return self.machine.ledger.render(self.machine.ledger.runs[run], self.now)

    def said(self, kind):
        return [each for each in self.out if isinstance(each, kind)]

    def sent(self, kind):
        """Return the commands of one type that were sent to hosts."""
        return [each.command for each in self.said(todo.Send) if isinstance(each.command, kind)]

    def offers(self):
        """Return the placements that were sent, as (host, attempt)."""
        return [(each.host, each.command.attempt) for each in self.said(todo.Send) if isinstance(each.command, Place)]


def host(
    *attempts,
    name="local",
    cpus=2.0,
    status="installed",
    memory_mb=8000,
    fingerprint="f",
    gpus=0,
    others=(),
    **more,
):
    """Return the report of a host with the worker `w` and `others`, a mapping of worker to status."""
    environment = EnvironmentStatus(worker="w", profile="default", status=status, fingerprint=fingerprint)
    further = [EnvironmentStatus(worker=each, profile="default", status=state) for each, state in dict(others).items()]
    total = Resources(cpus=cpus, memory_mb=memory_mb, gpus=gpus)
    inventory = [Gpu(id=str(index)) for index in range(gpus)]
    return HostState(
        host=name, total=total, gpus=inventory, environments=[environment, *further], attempts=list(attempts), **more
    )


def attempt(run, phase="running", cpus=1.0, number=1, gpus=None, warnings=(), **exit_fields):
    ended = ExitReport(**{"ended_at": 2e9, **exit_fields}) if exit_fields else None
    gpus = gpus or {}
    return AttemptReport(
        run=run,
        attempt=number,
        phase=AttemptPhase(phase),
        resources=Resources(cpus=cpus, gpus=sum(gpus.values())),
        gpus=gpus,
        exit=ended,
        detail=phase,
        warnings=list(warnings),
    )
