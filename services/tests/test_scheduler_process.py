"""A real broker and a real scheduler, each a process of its own.

The host is a fake: a bus client that plays a supervisor (it answers `place`, `stop`, `forget` and `describe`, and
reports four times a second), so that its attempts do exactly what a test wants. The real one has tests of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import subprocess
import sys
import time

import pytest
from ulid import ULID

from mosaic_bus import BusClient, CommandRefusedError, topics
from mosaic_bus.commands import Cancel, Hosts, Ping, Runs, Show, Snapshot, Stats, Submit
from mosaic_bus.messages import (
    AttemptPhase,
    AttemptReport,
    EnvironmentStatus,
    ExitReport,
    HostState,
    Resources,
    RunSpec,
    RunState,
    RunStateName,
)
from mosaic_services.home import StackHome

SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "required": ["run_id"],
    "properties": {"run_id": {"type": "string"}, "seed": {"type": "integer"}},
}


class FakeHost:
    """A bus client that plays a host named `local` with two CPUs."""

    def __init__(self, bus):
        self.bus = bus
        self.attempts = {}
        self.refuse = None
        self.schema = SCHEMA
        self.instance = ""
        self.placed = []
        self.reporting = True

    async def __aenter__(self):
        self.commands = self.bus.subscribe(topics.command("supervisor.local"))
        await self.bus.synced()
        self.tasks = [asyncio.create_task(self._answer()), asyncio.create_task(self._report())]
        return self

    async def __aexit__(self, *_):
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.commands.close()

    async def _answer(self):
        async for message in self.commands:
            args = message.payload["args"]
            result = {"ok": True, "result": self._carry_out(message.payload["command"], args)}
            if self.refuse and message.payload["command"] == "place":
                result = {"ok": False, "error": {"code": self.refuse, "message": "not here", "details": {}}}
            self.bus.publish(topics.reply(message.payload["reply_to"]), result, cor=message.header.id)
            self.report()

    def _carry_out(self, command, args):
        if command == "describe":
            said = {"status": "installed", "metadata": {}, "capabilities": {}, "example_config": {}}
            return {"worker": "w", "profile": "default", "config_schema": self.schema, **said}
        key = (args["run"], args["attempt"])
        if command == "place" and not self.refuse:
            self.placed.append(key)
            self.attempts.setdefault(
                key,
                AttemptReport(
                    run=key[0],
                    attempt=key[1],
                    phase=AttemptPhase.RUNNING,
                    resources=args["spec"]["resources"],
                    started_at=time.time(),
                ),
            )
        elif command == "stop" and key in self.attempts:
            self.end(key[0], code=143, stopped=True)
        elif command == "forget":
            self.attempts.pop(key, None)
        return {}

    def end(self, run, **fields):
        key = (run, 1)
        now = time.time()
        ended = ExitReport(ended_at=now, started_at=now - 1.5, **fields)
        self.attempts[key] = self.attempts[key].model_copy(update={"phase": AttemptPhase.ENDED, "exit": ended})

    def report(self):
        if self.reporting:
            environment = EnvironmentStatus(worker="w", profile="default", status="installed", fingerprint="f")
            total = Resources(cpus=2, memory_mb=8000)
            attempts = list(self.attempts.values())
            state = HostState(
                host="local", instance=self.instance, total=total, environments=[environment], attempts=attempts
            )
            self.bus.publish(topics.host_state("local"), state)

    async def _report(self):
        while True:
            self.report()
            await asyncio.sleep(0.25)


class Stack:
    """The processes of one home."""

    def __init__(self, home):
        self.home = home
        self.processes = []

    def start(self, service, *arguments):
        command = [sys.executable, "-m", f"mosaic_services.{service}", "--home", str(self.home.path), *arguments]
        with (self.home.path / f"{service}.log").open("ab") as log:
            process = subprocess.Popen(command, stderr=log)
        self.processes.append(process)
        return process

    def stop(self):
        for process in reversed(self.processes):
            if process.poll() is None:
                process.terminate()
        for process in reversed(self.processes):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            process.kill()
            process.wait()


@pytest.fixture
def stack(tmp_path):
    home = StackHome.find(tmp_path)
    home.create()
    made = Stack(home)
    made.start("broker")
    made.scheduler = made.start("scheduler")
    yield made
    made.stop()


@contextlib.asynccontextmanager
async def connected(stack):
    bus = BusClient(stack.home.address())
    await bus.connect(timeout=30)
    try:
        await bus.request("scheduler", Ping(), timeout=30)
        yield bus
    finally:
        await bus.close()


async def until(question, timeout=20.0):
    """Ask again and again until the answer is true, or fail at the deadline."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if answer := await question():
            return answer
        await asyncio.sleep(0.02)
    raise AssertionError(f"not within {timeout} s: {question}")


async def until_state(bus, run, *states, timeout=20.0):
    async def reached():
        state = (await bus.request("scheduler", Show(run=run))).run
        return state if state.state in states else None

    return await until(reached, timeout)


async def until_host_is_known(bus):
    async def known():
        return (await bus.request("scheduler", Hosts())).hosts

    await until(known)


def submit(seed=1, **fields):
    return Submit(spec=RunSpec(worker="w", config={"seed": seed}, **fields))


def test_a_run_from_submit_to_its_end_as_a_follower_sees_it(stack):
    async def story():
        async with connected(stack) as bus, FakeHost(bus) as host, bus.subscribe(topics.RUN_STATES) as states:
            await until_host_is_known(bus)
            run = (await bus.request("scheduler", submit())).run
            await until_state(bus, run, RunStateName.RUNNING)
            host.end(run, code=0)
            state = await until_state(bus, run, RunStateName.SUCCEEDED)
            assert state.reason == "exit 0 after 00:00:01"

            async def forgotten():
                return not host.attempts

            await until(forgotten)
            seen = [RunState.model_validate(each.payload).state.value for each in states.take_all()]
            assert list(dict.fromkeys(seen)) == ["starting", "running", "succeeded"]
            detail = await bus.request("scheduler", Show(run="w-seed1"))
            # The worker may be described before or after the submission; only then there is a warning.
            told = [each.event for each in detail.decisions if each.event != "warning"]
            assert told == ["submitted", "placed", "running", "succeeded"]
            assert detail.attempts[0]["outcome"] == "succeeded"
            assert detail.spec.config == {"seed": 1}
            snapshot = await bus.request("scheduler", Snapshot())
            assert [each.run for each in snapshot.runs] == [run]
            assert (await bus.request("scheduler", Snapshot(final_limit=0))).runs == []

    asyncio.run(story())


@pytest.mark.slow
def test_scheduler_killed_in_mid_life_loses_no_run_and_starts_none_twice(stack):
    async def story():
        async with connected(stack) as bus, FakeHost(bus) as host:
            await until_host_is_known(bus)
            runs = [(await bus.request("scheduler", submit(seed))).run for seed in range(4)]
            await until_state(bus, runs[1], RunStateName.RUNNING)
            await bus.request("scheduler", Cancel(run=runs[3], reason="enough"))
            stack.scheduler.send_signal(signal.SIGKILL)
            stack.scheduler.wait()
            host.end(runs[0], code=1, category="application", reason="broke", last_lines=["Traceback"])
            stack.start("scheduler")
            await bus.request("scheduler", Ping(), timeout=20)
            state = await until_state(bus, runs[0], RunStateName.FAILED)
            assert (state.reason, state.detail, state.category) == ("broke", "Traceback", "application")
            assert (await until_state(bus, runs[3], RunStateName.CANCELLED)).reason == "enough"
            await until_state(bus, runs[2], RunStateName.RUNNING)
            for run in runs[1:3]:
                host.end(run, code=0)
                await until_state(bus, run, RunStateName.SUCCEEDED)
            assert sorted(set(host.placed)) == sorted((run, 1) for run in runs[:3])

    asyncio.run(story())


@pytest.mark.slow
def test_scheduler_killed_during_a_burst_keeps_every_acknowledged_submission(stack):
    async def story():
        async with connected(stack) as bus:
            acknowledged = []

            async def one(seed):
                with contextlib.suppress(asyncio.CancelledError):
                    acknowledged.append((await bus.request("scheduler", submit(seed), timeout=60)).run)

            tasks = [asyncio.create_task(one(seed)) for seed in range(300)]

            async def under_way():
                return len(acknowledged) > 50

            await until(under_way)
            stack.scheduler.send_signal(signal.SIGKILL)
            stack.scheduler.wait()
            before = set(acknowledged)
            stack.start("scheduler")
            await asyncio.wait_for(asyncio.gather(*tasks), 30)
            listed = await bus.request("scheduler", Runs(limit=1000))
            known = {each.run for each in listed.runs}
            assert before <= known
            assert set(acknowledged) == known
            assert listed.total == 300

    asyncio.run(story())


@pytest.mark.slow
def test_a_submission_repeated_after_a_restart_gets_the_same_answer(stack):
    async def story():
        async with connected(stack) as bus:
            command = Submit(run=str(ULID()), spec=RunSpec(worker="w"))
            first = await bus.request("scheduler", command)
            stack.scheduler.terminate()
            assert stack.scheduler.wait(10) == 0
            stack.start("scheduler")
            assert await bus.request("scheduler", command, timeout=20) == first
            with pytest.raises(CommandRefusedError) as raised:
                await bus.request("scheduler", Submit(run=command.run, spec=RunSpec(worker="other")))
            assert raised.value.code == "id_reused"

    asyncio.run(story())


@pytest.mark.slow
def test_bad_submissions_are_refused_with_reasons(stack):
    async def story():
        async with connected(stack) as bus, FakeHost(bus):
            await until_host_is_known(bus)

            async def refused(spec):
                try:
                    await bus.request("scheduler", Cancel(run=(await bus.request("scheduler", Submit(spec=spec))).run))
                except CommandRefusedError as error:
                    return error
                return None

            assert (await refused(RunSpec(worker="v"))).code == "unknown_worker"
            huge = RunSpec(worker="w", resources=Resources(cpus=100))
            assert (await refused(huge)).code == "impossible_resources"
            # The description is fetched from the host; until it is known, any configuration is accepted.
            error = await until(lambda: refused(RunSpec(worker="w", config={"sed": 1})))
            assert (error.code, error.message.split("  ")[0]) == (
                "invalid_config",
                "config.sed: unknown field; did you mean seed?",
            )
            with pytest.raises(CommandRefusedError) as raised:
                await bus.request("scheduler", Runs(states=["done"]))
            assert raised.value.details.allowed[0] == "queued"
            with pytest.raises(CommandRefusedError) as raised:
                await bus.request("scheduler", Cancel(run="nobody"))
            assert raised.value.code == "unknown_run"

    asyncio.run(story())


@pytest.mark.slow
def test_a_host_that_refuses_fails_the_run_with_its_reason(stack):
    async def story():
        async with connected(stack) as bus, FakeHost(bus) as host:
            host.refuse = "unknown_worker"
            run = (await bus.request("scheduler", submit())).run
            state = await until_state(bus, run, RunStateName.FAILED)
            assert (state.category, state.reason) == (
                "configuration",
                "host local refused it: not here (unknown_worker)",
            )

    asyncio.run(story())


@pytest.mark.slow
def test_a_host_that_cannot_take_runs_now_gets_them_later_in_order(stack):
    async def story():
        async with connected(stack) as bus, FakeHost(bus) as host:
            await until_host_is_known(bus)
            host.refuse = "host_unavailable"
            runs = [(await bus.request("scheduler", submit(seed))).run for seed in range(3)]

            async def refused():
                states = [(await bus.request("scheduler", Show(run=run))).run for run in runs[:2]]
                return all(state.reason.startswith("local could not take it: not here") for state in states)

            await until(refused)
            state = (await bus.request("scheduler", Show(run=runs[0]))).run
            assert (state.state, state.attempt) == (RunStateName.QUEUED, 0)
            host.refuse = None
            for run in runs[:2]:
                assert (await until_state(bus, run, RunStateName.RUNNING)).attempt == 1
            assert sorted(set(host.placed)) == sorted((run, 1) for run in runs[:2])
            assert (await bus.request("scheduler", Show(run=runs[2]))).run.state is RunStateName.QUEUED

    asyncio.run(story())


@pytest.mark.slow
def test_a_worker_with_a_broken_schema_does_not_end_the_scheduler(stack):
    async def story():
        async with connected(stack) as bus, FakeHost(bus) as host:
            host.schema = {"$ref": "#/$defs/missing"}
            await until_host_is_known(bus)

            async def warned():
                return [each for each in (await bus.request("scheduler", submit())).warnings if "unusable" in each]

            assert await until(warned)
            assert stack.scheduler.poll() is None
            assert (stack.home.path / "scheduler.log").read_text().count("unusable config schema") == 1

    asyncio.run(story())


@pytest.mark.slow
def test_two_supervisors_of_one_name_are_told(stack):
    async def story():
        async with connected(stack) as bus, FakeHost(bus) as first, FakeHost(bus) as second:
            first.instance, second.instance = "1", "2"

            async def told():
                stats = await bus.request("scheduler", Stats())
                return stats.detail if stats.status == "degraded" else ""

            assert (await until(told)).startswith("two supervisors call themselves local")
            run = (await bus.request("scheduler", submit())).run
            assert "two supervisors" in (await bus.request("scheduler", Show(run=run))).run.reason
            second.reporting = False
            await until_state(bus, run, RunStateName.RUNNING)

            async def well_again():
                return (await bus.request("scheduler", Stats())).status == "ok"

            assert await until(well_again)

    asyncio.run(story())


@pytest.mark.slow
def test_a_full_disk_refuses_submissions_loses_no_state_and_recovers(stack):
    async def story():
        async with connected(stack) as bus, FakeHost(bus) as host:
            await until_host_is_known(bus)
            run = (await bus.request("scheduler", submit())).run
            await until_state(bus, run, RunStateName.RUNNING)
            # The scheduler's files may not grow, which SQLite takes for a full disk.
            pid = stack.scheduler.pid
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, hard))

            async def refused():
                try:
                    await bus.request("scheduler", submit(seed=2))
                except CommandRefusedError as error:
                    return error
                return None

            assert (await until(refused)).code == "store_unavailable"
            assert (await bus.request("scheduler", Stats())).status == "degraded"
            host.end(run, code=0)
            assert (await until_state(bus, run, RunStateName.SUCCEEDED)).exit_code == 0
            assert host.attempts, "its end is not on disk, so the host must keep it"
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))

            async def recovered():
                return (await bus.request("scheduler", Stats())).status == "ok" and not host.attempts

            await until(recovered)
            again = (await bus.request("scheduler", submit(seed=3))).run
            assert stack.scheduler.poll() is None
            stack.scheduler.kill()
            stack.scheduler.wait()
            stack.start("scheduler")
            await bus.request("scheduler", Ping(), timeout=20)
            assert (await bus.request("scheduler", Show(run=run))).run.state is RunStateName.SUCCEEDED
            assert (await bus.request("scheduler", Show(run=again))).run.run == again

    asyncio.run(story())


@pytest.mark.slow
def test_a_second_scheduler_in_the_same_home_is_refused(stack):
    async def story():
        async with connected(stack):
            pass

    asyncio.run(story())
    second = stack.start("scheduler")
    assert second.wait(20) == 2
    assert "another scheduler" in (stack.home.path / "scheduler.log").read_text()


@pytest.mark.slow
def test_broken_reports_are_counted_and_harmless(stack):
    async def story():
        async with connected(stack) as bus:
            bus.publish(topics.host_state("local"), {"host": "local", "total": {"cpus": -1}})
            bus.publish(topics.host_state("local"), {"host": "other", "total": {"cpus": 1}})
            # A number that no store can hold.
            report = {"run": "01RUN", "attempt": 1, "phase": "ended", "resources": {}}
            ending = {"code": 2**63, "ended_at": 1.0}
            state = {"host": "local", "instance": "x", "total": {"cpus": 1}, "environments": []}
            bus.publish(topics.host_state("local"), {**state, "attempts": [{**report, "exit": ending}]})

            async def counted():
                return (await bus.request("scheduler", Stats())).counters["bad_reports"] == 3

            await until(counted)
            assert (await bus.request("scheduler", Hosts())).hosts == []

    asyncio.run(story())
