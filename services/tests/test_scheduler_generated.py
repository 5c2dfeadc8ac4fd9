"""The scheduler's state machine against generated orders of events.

The world here is a model, not the real thing: hosts that lose, delay and repeat commands, report late or not at all,
go away and come back, reboot or forget; and a scheduler that crashes before or after it has saved. What must hold in
every such world is stated in the invariants, and in `teardown`, where everybody behaves again.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from mosaic_bus.commands import (
    Cancel,
    CancelGroup,
    Command,
    Drain,
    Forget,
    NewRun,
    PauseQueue,
    Place,
    Prioritise,
    Rerun,
    Stop,
    Submit,
    SubmitMany,
)
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
    RunStateName,
)
from mosaic_bus.refusals import RefusalCode
from mosaic_services.scheduler import events
from mosaic_services.scheduler import instructions as todo
from mosaic_services.scheduler.machine import Machine
from mosaic_services.scheduler.model import NOT_TAKEN
from mosaic_services.settings.model import SchedulerSettings

LOST_AFTER_S = 60.0
# A command or report that is under way for longer is lost.
LONGEST_DELAY_S = 2.0
CPUS = 4.0
GPUS = ("0", "1")
PHASES = [AttemptPhase.PREPARING, AttemptPhase.STARTING, AttemptPhase.RUNNING, AttemptPhase.ENDED]
Key = tuple[str, int]


@dataclass
class ModelHost:
    """The true state of a host, which the scheduler knows only from reports."""

    name: str
    up: bool = True
    # Its disk is full, or its supervisor is about to end.
    full: bool = False
    stopping: bool = False
    instance: int = 1
    attempts: dict[Key, AttemptReport] = field(default_factory=dict)
    forgotten: set[Key] = field(default_factory=set)
    inbox: list[tuple[float, Place | Stop | Forget]] = field(default_factory=list)
    reports: list[tuple[float, HostState]] = field(default_factory=list)

    def state(self) -> HostState:
        environments = [EnvironmentStatus(worker="w", profile="default", status="installed", fingerprint="f")]
        return HostState(
            host=self.name,
            instance=f"{self.name}{self.instance}",
            draining=self.stopping,
            total=Resources(cpus=CPUS, memory_mb=8000, gpus=len(GPUS)),
            gpus=[Gpu(id=each) for each in GPUS],
            tags=[f"host:{self.name}"],
            environments=environments,
            attempts=list(self.attempts.values()),
        )

    def live(self) -> list[AttemptReport]:
        return [each for each in self.attempts.values() if each.phase is not AttemptPhase.ENDED]

    def end(self, key: Key, *, code: int | None, stopped: bool = False) -> None:
        category = None if code == 0 or stopped else "infrastructure" if code is None else "application"
        ended = ExitReport(code=code, stopped=stopped, category=category, ended_at=1.0)
        self.attempts[key] = self.attempts[key].model_copy(update={"phase": AttemptPhase.ENDED, "exit": ended})


class World(RuleBasedStateMachine):
    """A scheduler and two hosts."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.hosts = {name: ModelHost(name) for name in ("a", "b")}
        self.saved_runs = {}
        self.saved_attempts = {}
        self.settings = {}
        self.final = {}
        self.requests = 0
        self.submitted: list[str] = []
        self.crash = ""
        # Live attempts of hosts that were given up after a long silence.
        self.abandoned: set[tuple[str, Key]] = set()
        self.machine = self._load()

    # ── the shell, as a model ───────────────────────────────────────────────────────────────────

    def _load(self) -> Machine:
        runs = []
        for saved in self.saved_runs.values():
            run = copy.copy(saved)
            run.attempts = [copy.copy(each) for key, each in sorted(self.saved_attempts.items()) if key[0] == run.id]
            runs.append(run)
        return Machine(runs, self._at(), SchedulerSettings(lost_after_s=LOST_AFTER_S), self.settings)

    def _at(self) -> events.Instant:
        # The wall clock jumps back and forth: nothing may depend on it.
        return events.Instant(self.now, 1e9 + (self.now * 7919) % 100_000)

    def ask(self, command: Command) -> bool | None:
        """Pass a client's command to the scheduler; return whether it accepted it, or None if it crashed."""
        try:
            _, out = self.machine.execute(command, self._at())
        except CommandRefusedError:
            return False
        return self._do(out)

    def feed(self, event: events.Event) -> None:
        self._do(self.machine.handle(event))

    def _do(self, out: list[todo.Instruction]) -> bool | None:
        for name, known in self.machine.ledger.hosts.items():
            if self.now - known.heard_at > LOST_AFTER_S:
                self.abandoned |= {(name, (each.run, each.attempt)) for each in self.hosts[name].live()}
        crash, self.crash = self.crash, ""
        if crash != "before saving":
            self._save(out)
        if crash:
            self.machine = self._load()
            return None
        for instruction in out:
            match instruction:
                case todo.Send(host=host, command=command):
                    self.hosts[host].inbox.append((self.now, command))
                case todo.Publish(state=state):
                    assert state.run not in self.final or self.final[state.run] == state, "a final state changed"
                    if state.state.final:
                        self.final[state.run] = state
        return True

    def _save(self, out: list[todo.Instruction]) -> None:
        for instruction in out:
            match instruction:
                case todo.SaveRun(run=run):
                    self.saved_runs[run.id] = run
                case todo.SaveAttempt(attempt=attempt):
                    self.saved_attempts[attempt.key] = attempt
                case todo.SaveSetting(key=key, value=value):
                    self.settings = {each: text for each, text in {**self.settings, key: value}.items() if text}

    # ── what may happen ─────────────────────────────────────────────────────────────────────────

    @initialize(reported=st.booleans())
    def hosts_report_first(self, reported: bool) -> None:
        if reported:
            for name in self.hosts:
                self.report(name)
                self.deliver_report(name)

    def _new_id(self) -> str:
        return f"01R{len(self.submitted):023d}"

    def _take(self, command: Submit | SubmitMany, runs: list[str]) -> None:
        """Submit runs. Unless the scheduler crashed before it saved them, they must never be lost."""
        taken = self.ask(command)
        saved = [run for run in runs if run in self.saved_runs]
        assert saved in ([], runs), "all or none"
        self.submitted += saved
        assert taken is None or bool(saved) == taken

    @rule(
        cpus=st.sampled_from([0.5, 1.0, 2.0, 4.0]),
        gpus=st.sampled_from([0, 0, 0, 0.5, 1, 2]),
        priority=st.sampled_from([0, 0, 1, -1]),
        retries=st.sampled_from([0, 1, 3, 3]),
        after=st.integers(-4, 3),
        where=st.sampled_from([(), (), ("host:a",), ("!host:b",)]),
    )
    def submit(
        self,
        cpus: float,
        gpus: float = 0,
        priority: int = 0,
        retries: int = 0,
        after: int = -1,
        where: tuple[str, ...] = (),
    ) -> None:
        run = self._new_id()
        first = self.submitted[-1 - after :][:1] if after >= 0 else ()
        spec = RunSpec(
            worker="w",
            resources=Resources(cpus=cpus, gpus=gpus),
            priority=priority,
            retries={"max": retries, "on": ("infrastructure", "application"), "delay_s": 1},
            after=tuple(first),
            requires=where if all(host.up for host in self.hosts.values()) else (),
            wait_for_host=True,
        )
        self._take(Submit(run=run, spec=spec), [run])

    @rule(count=st.integers(2, 5), chained=st.booleans())
    def submit_a_group(self, count: int, chained: bool) -> None:
        runs = [f"01R{len(self.submitted) + number:023d}" for number in range(count)]
        specs = [
            RunSpec(worker="w", group="g", after=(runs[number + 1],) if chained and number + 1 < count else ())
            for number in range(count)
        ]
        self._take(SubmitMany(runs=[NewRun(run=run, spec=spec) for run, spec in zip(runs, specs, strict=True)]), runs)

    @rule()
    def cancel_the_group(self) -> None:
        self.ask(CancelGroup(group="g"))

    @rule(again=st.booleans())
    def run_failures_again(self, again: bool) -> None:
        self.requests += not again
        request = f"01K{self.requests:023d}"
        before = set(self.saved_runs)
        self.ask(Rerun(request=request, group="g"))
        self.submitted += sorted(set(self.saved_runs) - before)

    @rule(data=st.data(), priority=st.integers(-2, 2))
    def prioritise(self, data: st.DataObject, priority: int) -> None:
        if self.submitted:
            run = data.draw(st.sampled_from(self.submitted))
            self.ask(Prioritise(run=run, priority=priority))

    @rule(paused=st.booleans())
    def pause(self, paused: bool) -> None:
        self.ask(PauseQueue(paused=paused))

    @rule(name=st.sampled_from("ab"), drained=st.booleans())
    def drain(self, name: str, drained: bool) -> None:
        self.ask(Drain(host=name, drained=drained))

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.submitted:
            run = data.draw(st.sampled_from(self.submitted))
            was_final = self.machine.ledger.runs[run].final
            taken = self.ask(Cancel(run=run))
            assert taken is None or taken != was_final

    @rule(seconds=st.sampled_from([0.1, 0.5, 0.5, 0.5, 1.0, 2.0, 4.0]), deaf=st.sampled_from([False] * 9 + [True]))
    def tick(self, seconds: float, deaf: bool) -> None:
        self.now += seconds
        self.feed(events.Tick(self._at(), deaf))

    @rule(seconds=st.integers(1, 15), going=st.booleans(), code=st.sampled_from([0, 0, 1]))
    def all_goes_well(self, seconds: int, going: bool, code: int = 0) -> None:
        """Hosts and bus work; workers may fail."""
        for _ in range(2 * seconds):
            self._half_second(going, code)

    @rule(name=st.sampled_from("ab"), seconds=st.integers(10, 75))
    def one_host_is_away(self, name: str, seconds: int) -> None:
        host = self.hosts[name]
        host.up = False
        self.all_goes_well(seconds, going=False)
        host.up = True

    @rule(name=st.sampled_from("ab"))
    def report(self, name: str) -> None:
        host = self.hosts[name]
        if host.up:
            host.reports.append((self.now, host.state()))

    @rule(name=st.sampled_from("ab"))
    def deliver_report(self, name: str) -> None:
        host = self.hosts[name]
        while host.reports:
            sent, state = host.reports.pop(0)
            if self.now - sent <= LONGEST_DELAY_S:
                self.feed(events.HostReported(self._at(), state))
                return

    @rule(name=st.sampled_from("ab"))
    def lose_reports(self, name: str) -> None:
        self.hosts[name].reports.clear()

    @rule(name=st.sampled_from("ab"), index=st.integers(0, 5), keep=st.booleans(), ack=st.booleans())
    def deliver_command(self, name: str, index: int, keep: bool, ack: bool) -> None:
        """Any command in transit arrives, perhaps twice; its answer may be lost."""
        host = self.hosts[name]
        host.inbox = [each for each in host.inbox if self.now - each[0] <= LONGEST_DELAY_S]
        if not host.up or not host.inbox:
            return
        index %= len(host.inbox)
        _, command = host.inbox[index] if keep else host.inbox.pop(index)
        answer = self._carry_out(host, command)
        if ack and answer is not None:
            self.feed(answer)

    @rule(name=st.sampled_from("ab"))
    def lose_commands(self, name: str) -> None:
        self.hosts[name].inbox.clear()

    @rule(name=st.sampled_from("ab"), index=st.integers(0, 5), code=st.sampled_from([0, 0, 1, 2]))
    def attempt_goes_on(self, name: str, index: int, code: int) -> None:
        host = self.hosts[name]
        live = host.live()
        if live:
            self._advance(host, live[index % len(live)], code)

    @rule(name=st.sampled_from("ab"), how=st.sampled_from(["away", "reboot", "amnesia", "back"]))
    def host_changes(self, name: str, how: str) -> None:
        host = self.hosts[name]
        host.up = how != "away"
        host.inbox.clear()
        if host.stopping or how in {"reboot", "amnesia"}:
            host.stopping = False
            host.instance += 1
        if how == "reboot":
            for each in host.live():
                host.end((each.run, each.attempt), code=None)
        elif how == "amnesia":
            host.attempts.clear()

    @rule(name=st.sampled_from("ab"), known=st.booleans(), then=st.sampled_from(["lost", "again", "elsewhere"]))
    def offers_are_refused(self, name: str, known: bool, then: str) -> None:
        """A host refuses every offer; the same offers may arrive again after it has recovered."""
        self.submit(1.0)
        host = self.hosts[name]
        if not host.up:
            return
        host.full = True
        offers = [each for each in host.inbox if isinstance(each[1], Place)]
        offers = [each for each in offers if self.now - each[0] <= LONGEST_DELAY_S]
        for _, offer in offers:
            answer = self._carry_out(host, offer)
            if known:
                self.feed(answer)
        host.full = False
        if then == "lost":
            host.inbox.clear()
            return
        for each in self.hosts.values():
            if each.up:
                self.feed(events.HostReported(self._at(), each.state()))
        if then == "elsewhere":
            for each in self.hosts.values():
                if each.up and each is not host:
                    for sent, command in self._take_inbox(each):
                        if self.now - sent <= LONGEST_DELAY_S:
                            self._carry_out(each, command)
        for _, offer in offers:
            self._carry_out(host, offer)

    @rule(name=st.sampled_from("ab"), full=st.booleans())
    def disk_changes(self, name: str, full: bool) -> None:
        self.hosts[name].full = full

    @rule(name=st.sampled_from("ab"))
    def supervisor_is_about_to_end(self, name: str) -> None:
        self.hosts[name].stopping = True

    @rule(when=st.sampled_from(["before saving", "after saving"]))
    def scheduler_crashes(self, when: str) -> None:
        self.crash = when

    # ── the host, as a model ────────────────────────────────────────────────────────────────────

    def _carry_out(self, host: ModelHost, command: Place | Stop | Forget) -> events.Event | None:
        key = (command.run, command.attempt)
        answered = events.Answered(self._at(), host.name, command)
        match command:
            case Place() if host.stopping:
                return replace(answered, refusal=CommandRefusedError(RefusalCode.STOPPING, "it is about to end"))
            case Place() if host.full and key not in host.attempts and key not in host.forgotten:
                return replace(answered, refusal=CommandRefusedError(RefusalCode.HOST_UNAVAILABLE, "disk full"))
            case Place(spec=spec):
                if key in host.forgotten:
                    return replace(answered, refusal=CommandRefusedError(RefusalCode.ALREADY_ENDED, "it has ended"))
                phase = AttemptPhase.PREPARING
                host.attempts.setdefault(
                    key,
                    AttemptReport(run=key[0], attempt=key[1], phase=phase, resources=spec.resources, gpus=command.gpus),
                )
                return answered
            case Stop():
                if key in host.attempts and host.attempts[key].phase is not AttemptPhase.ENDED:
                    host.attempts[key] = host.attempts[key].model_copy(update={"phase": AttemptPhase.STOPPING})
                return answered
            case Forget():
                assert key not in host.attempts or host.attempts[key].phase is AttemptPhase.ENDED, "forgot a live one"
                saved = self.saved_attempts.get(key)
                assert saved is None or saved.outcome, "forgotten before its end was saved"
                if host.attempts.pop(key, None):
                    host.forgotten.add(key)
        return None

    @staticmethod
    def _advance(host: ModelHost, attempt: AttemptReport, code: int) -> None:
        key = (attempt.run, attempt.attempt)
        if attempt.phase is AttemptPhase.STOPPING:
            host.end(key, code=None, stopped=True)
        elif attempt.phase is AttemptPhase.RUNNING:
            host.end(key, code=code)
        else:
            host.attempts[key] = attempt.model_copy(update={"phase": PHASES[PHASES.index(attempt.phase) + 1]})

    # ── what must hold ──────────────────────────────────────────────────────────────────────────

    @invariant()
    def no_host_is_overcommitted(self) -> None:
        for host in self.hosts.values():
            assert sum(each.resources.cpus for each in host.live()) <= CPUS
            for gpu in GPUS:
                holders = [each for each in host.live() if gpu in each.gpus]
                assert sum(each.gpus[gpu] for each in holders) <= 1, holders
            for each in host.live():
                assert sum(each.gpus.values()) == each.resources.gpus

    @invariant()
    def no_run_has_two_live_attempts(self) -> None:
        live = [
            each.run
            for host in self.hosts.values()
            for each in host.live()
            if (host.name, (each.run, each.attempt)) not in self.abandoned
        ]
        assert len(live) == len(set(live))

    @invariant()
    def every_run_is_in_one_place(self) -> None:
        ledger = self.machine.ledger
        waiting = [run.id for run in ledger.queue]
        placed = [run for host in ledger.hosts.values() for run, _ in host.placed]
        assert sorted(waiting + placed) == sorted(run.id for run in ledger.runs.values() if not run.final)

    @invariant()
    def nobody_starts_before_those_it_comes_after(self) -> None:
        for run in self.saved_runs.values():
            begun = any(key[0] == run.id for key in self.saved_attempts)
            assert not begun or all(self.saved_runs[each].state is RunStateName.SUCCEEDED for each in run.after)

    @invariant()
    def attempts_are_no_more_than_allowed(self) -> None:
        for run in self.machine.ledger.runs.values():
            counted = [each for each in run.attempts if each.begun and each.outcome != NOT_TAKEN]
            assert len(counted) <= run.spec.retries.max + 1

    @invariant()
    def attempts_are_numbered_without_gaps(self) -> None:
        for run in self.machine.ledger.runs.values():
            assert [each.number for each in run.attempts] == list(range(1, len(run.attempts) + 1))
            assert all(each.begun for each in run.attempts[:-1])

    @invariant()
    def what_was_promised_is_kept(self) -> None:
        assert set(self.submitted) <= set(self.saved_runs)

    def teardown(self) -> None:
        """Once hosts and bus work, every run ends and every attempt is forgotten."""
        self.crash = ""
        self.pause(paused=False)
        for name in self.hosts:
            self.drain(name, drained=False)
        for host in self.hosts.values():
            host.up = True
            host.full = False
            host.instance += host.stopping
            host.stopping = False
            host.inbox.clear()
        for _ in range(20 * len(self.submitted) + 300):
            self._half_second(going=True)
        for run in self.submitted:
            assert self.saved_runs[run].final, self.saved_runs[run]
        for host in self.hosts.values():
            assert not host.attempts
        assert not self.machine.ledger.queue
        for host in self.machine.ledger.hosts.values():
            assert not host.placed
            assert host.free() == host.total(), "something of it has leaked"
        assert _states(self._load()) == _states(self.machine)

    def _half_second(self, going: bool, code: int = 0) -> None:
        """Hosts that are up do their work. With `going`, attempts proceed; an attempt given up ends only if stopped."""
        self.now += 0.5
        self.feed(events.Tick(self._at()))
        for host in self.hosts.values():
            if not host.up:
                continue
            for sent, command in self._take_inbox(host):
                if self.now - sent <= LONGEST_DELAY_S and (answer := self._carry_out(host, command)):
                    self.feed(answer)
            for each in host.live():
                run = self.saved_runs[each.run]
                newest = self.saved_attempts.get((each.run, each.attempt))
                given_up = run.final or run.ending is not None or bool(newest and newest.outcome)
                if each.phase is AttemptPhase.STOPPING or (going and not given_up):
                    self._advance(host, each, code)
            self.feed(events.HostReported(self._at(), host.state()))
            self.no_host_is_overcommitted()
            self.no_run_has_two_live_attempts()

    @staticmethod
    def _take_inbox(host: ModelHost) -> list[tuple[float, Place | Stop | Forget]]:
        taken, host.inbox = host.inbox, []
        return taken


def _states(machine: Machine) -> dict[str, dict]:
    """All runs of a machine, without their versions, which change with a restart."""
    return {run: each.render().model_dump(exclude={"version"}) for run, each in machine.ledger.runs.items()}


World.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
# What fails is made as small as possible before it is told, and that takes minutes.
TestWorld = pytest.mark.slow(pytest.mark.timeout(900)(World.TestCase))


def test_cancel_of_a_queued_run_ends_it_at_once():
    world = World()
    world.submit(1.0)
    (run,) = world.submitted
    world.ask(Cancel(run=run))
    assert world.saved_runs[run].state is RunStateName.CANCELLED
