"""The follower over a real broker. Scheduler and telemetry are fakes, so that a test controls what they publish."""

import asyncio
import contextlib

import pytest
from stack import wait_until

from mosaic_bus import Bus, BusClient, NoAnswerError, topics
from mosaic_bus.client.follower import Follower
from mosaic_bus.commands import RunList, Runs, Snapshot, SnapshotResult, Summaries, SummariesResult
from mosaic_bus.errors import CommandRefusedError
from mosaic_bus.messages import HostState, Resources, RunState, RunSummary
from mosaic_bus.refusals import RefusalCode
from mosaic_bus.service import Service

DEADLINE_S = 60


class Fake(Service):
    """A service that sets an event when it has started."""

    begun = None

    async def start(self):
        self.begun.set()


class FakeScheduler(Fake):
    """Holds run states and publishes each change unless the test marks it as lost."""

    def __init__(self, home, states=()):
        super().__init__("scheduler", home)
        self.states = {each.run: each for each in states}
        self.version = self.epoch << 32
        self.asked = []
        self.handle(Snapshot, self._on_snapshot)
        self.handle(Runs, self._on_runs)

    def change(self, run, name="running", *, lost=False, **fields):
        self.version += 1
        times = {"submitted_at": 1.0, "changed_at": 1.0}
        known = {"run": run, "name": run, "worker": "w", "profile": "p", "reason": "", "attempt": 1, **times}
        self.states[run] = RunState(**{**known, "state": name, "version": self.version, **fields})
        if not lost:
            self.bus.publish(topics.run_state(run), self.states[run])

    async def _on_snapshot(self, command):
        self.asked.append(command)
        states = [each for each in self.states.values() if each.version > command.since]
        if command.runs:
            states = [each for each in states if each.run in command.runs]
        final = [each.run for each in states if each.state.final][-command.final_limit :] if command.final_limit else []
        counts = {}
        for each in self.states.values():
            counts[each.state.value] = counts.get(each.state.value, 0) + 1
        runs = [each for each in states if not each.state.final or each.run in final]
        host = HostState(host="h", total=Resources(cpus=1, memory_mb=1))
        return SnapshotResult(version=self.version, runs=runs, counts=counts, hosts=[host], silent_s={"h": 3.0})

    async def _on_runs(self, command):
        if unknown := [each for each in command.runs if each not in self.states]:
            raise CommandRefusedError(RefusalCode.UNKNOWN_RUN, f"no run {unknown[0]}")
        return RunList(runs=[self.states[each] for each in command.runs], total=len(command.runs))


class FakeTelemetry(Fake):
    """Holds run summaries and publishes each change unless the test marks it as lost."""

    def __init__(self, home):
        super().__init__("telemetry", home)
        self.summaries = {}
        self.asked = []
        self.handle(Summaries, self._on_summaries)

    def change(self, run, events, *, lost=False, **fields):
        self.summaries[run] = RunSummary(run=run, attempt=1, events=events, **fields)
        if not lost:
            self.bus.publish(topics.summary(run), self.summaries[run])

    async def _on_summaries(self, command):
        self.asked.append(command.runs)
        return SummariesResult(summaries=[self.summaries[run] for run in command.runs if run in self.summaries])


@contextlib.asynccontextmanager
async def running(service):
    service.begun = asyncio.Event()
    task = asyncio.create_task(service.run())
    await service.begun.wait()
    try:
        yield service
    finally:
        service.stop()
        await task


async def until(follower, condition):
    """Wait until a condition holds; check it after each change and every 0.1 s."""
    async with asyncio.timeout(DEADLINE_S):
        revision = 0
        while not condition():
            revision = (await follower.wait(revision, 0.1)).revision


def run(scenario):
    async def main():
        async with asyncio.timeout(2 * DEADLINE_S):
            await scenario

    asyncio.run(main())


def test_snapshot_and_messages_make_one_view(shared_broker):
    async def scenario():
        home = shared_broker.home
        async with (
            BusClient(shared_broker.address) as bus,
            running(FakeScheduler(home)) as scheduler,
            running(FakeTelemetry(home)) as telemetry,
        ):
            scheduler.change("old", lost=True)
            telemetry.change("old", 5, lost=True)
            async with Follower(bus) as follower:
                view = follower.view
                assert view.runs["old"].state == "running"
                assert view.summaries["old"].events == 5
                scheduler.change("new", "queued", attempt=0)
                await until(follower, lambda: "new" in view.runs)
                assert view.counts == {"running": 1, "queued": 1}
                seen = view.revision
                telemetry.change("old", 6)
                changes = await follower.wait(seen, DEADLINE_S)
                assert (changes.runs, view.summaries["old"].events) == ({"old"}, 6)
                assert not await follower.wait(changes.revision, 0.05)
                assert follower.silent() == {}
            async with Follower(bus, runs=["new"], hosts=False) as follower:
                assert (set(follower.view.runs), follower.view.hosts) == ({"new"}, {})

    run(scenario())


def test_the_audit_finds_lost_final_states(shared_broker, monkeypatch):
    monkeypatch.setattr("mosaic_bus.client.follower._AUDIT_S", 0.2)

    async def scenario():
        home = shared_broker.home
        async with (
            BusClient(shared_broker.address) as bus,
            running(FakeScheduler(home)) as scheduler,
            running(FakeTelemetry(home)) as telemetry,
        ):
            scheduler.change("a")
            telemetry.change("a", 1)
            async with Follower(bus, final_limit=1) as follower:
                scheduler.change("a", "succeeded", lost=True)
                await until(follower, lambda: follower.view.runs["a"].state.final)
                assert scheduler.asked[-1].since
                telemetry.change("a", 2, lost=True, complete=True)
                await until(follower, lambda: follower.view.summaries["a"].complete)
                asked = len(telemetry.asked)
                revision = follower.view.revision
                scheduler.change("b", "queued", attempt=0)
                await follower.wait(revision, DEADLINE_S)
                assert len(telemetry.asked) == asked, "what is complete is asked for no more"

    run(scenario())


def test_a_restarted_scheduler_is_noticed_and_its_lost_changes_are_recovered(shared_broker, monkeypatch):
    monkeypatch.setattr("mosaic_bus.client.follower._AUDIT_S", 1000.0)

    async def scenario():
        home = shared_broker.home
        async with BusClient(shared_broker.address) as bus, running(FakeTelemetry(home)):
            async with running(FakeScheduler(home)) as scheduler:
                for name in ("ends", "goes", "stays"):
                    scheduler.change(name)
                follower = await Follower(bus, final_limit=0).__aenter__()
                assert len(follower.view.runs) == 3
            changed = FakeScheduler(home, scheduler.states.values())
            changed.change("ends", "failed", lost=True)
            changed.change("stays", "stopping", lost=True)
            del changed.states["goes"]
            async with running(changed):
                await until(follower, lambda: set(follower.view.runs) == {"stays"})
                assert follower.view.runs["stays"].state == "stopping"
                assert follower.view.counts == {"failed": 1, "stopping": 1}
            await follower.close()

    run(scenario())


@pytest.mark.slow
def test_a_killed_broker_is_noticed_and_the_view_is_whole_after_it(start_broker, monkeypatch):
    monkeypatch.setattr("mosaic_bus.client.follower._AUDIT_S", 1000.0)
    monkeypatch.setattr("mosaic_bus.client.follower._SILENT_AFTER_S", 1.5)

    async def scenario():
        broker = start_broker()
        async with (
            BusClient(broker.address) as bus,
            running(FakeScheduler(broker.home)) as scheduler,
            running(FakeTelemetry(broker.home)) as telemetry,
        ):
            scheduler.change("a")
            async with Follower(bus) as follower:
                broker.kill()
                scheduler.change("a", "stopping")
                telemetry.change("a", 7)
                await until(follower, lambda: set(follower.silent()) == {"broker"})
                broker.start()
                await until(follower, lambda: follower.view.runs["a"].state == "stopping")
                await until(follower, lambda: follower.view.summaries.get("a") is not None)
                await until(follower, lambda: not follower.silent())
                assert follower.view.counts == {"stopping": 1}
                assert follower.view.summaries["a"].events == 7

    run(scenario())


def test_a_subscriber_that_lost_messages_asks_again(shared_broker, monkeypatch):
    monkeypatch.setattr("mosaic_bus.client.follower._AUDIT_S", 1000.0)
    monkeypatch.setattr("mosaic_bus.client.follower._QUEUE_LENGTH", 2)

    async def scenario():
        async with (
            BusClient(shared_broker.address) as bus,
            running(FakeScheduler(shared_broker.home)) as scheduler,
            running(FakeTelemetry(shared_broker.home)),
            Follower(bus) as follower,
        ):
            for number in range(300):
                scheduler.change(f"r{number}", "queued", attempt=0)
            await until(follower, lambda: len(follower.view.runs) == 300)
            assert follower.view.counts == {"queued": 300}

    run(scenario())


def test_following_without_a_scheduler_times_out(shared_broker):
    async def scenario():
        async with BusClient(shared_broker.address) as bus:
            follower = Follower(bus)
            await follower.start()
            with pytest.raises(NoAnswerError):
                await follower.ready(0.2)
            await follower.close()
            assert bus.on_welcome == []

    run(scenario())


def test_the_synchronous_view_waits_and_returns_copies(shared_broker):
    async def scenario():
        async with (
            running(FakeScheduler(shared_broker.home)) as scheduler,
            running(FakeTelemetry(shared_broker.home)),
        ):
            scheduler.change("a")

            def read():
                with Bus(shared_broker.address) as bus, bus.follow() as view:
                    first = view.wait(DEADLINE_S)
                    loop.call_soon_threadsafe(scheduler.change, "a", "succeeded")
                    runs = view.runs
                    while not view.runs["a"].state.final:
                        assert view.wait(DEADLINE_S)
                    return first.runs, runs["a"].state, view.counts, view.silent, set(view.hosts)

            loop = asyncio.get_running_loop()
            told = await asyncio.to_thread(read)
            assert told == ({"a"}, "running", {"succeeded": 1}, {}, {"h"})

    run(scenario())


def test_the_synchronous_view_can_be_closed_in_the_thread_of_its_bus(shared_broker):
    """The garbage collector may close an unfinished iterator in that thread."""

    async def scenario():
        async with running(FakeScheduler(shared_broker.home)), running(FakeTelemetry(shared_broker.home)):

            def read():
                with Bus(shared_broker.address) as bus:
                    view = bus.follow()

                    async def close():
                        view.close()

                    following = len(bus.client.on_welcome)
                    bus.begin(close()).result(DEADLINE_S)
                    wait_until("it has stopped following", lambda: not bus.client.on_welcome)
                    return following

            assert await asyncio.to_thread(read) == 1

    run(scenario())


def test_bus_that_is_closed_cancels_what_still_runs_on_it(shared_broker):
    with Bus(shared_broker.address) as bus:
        waiting = bus.begin(asyncio.sleep(600))
    assert waiting.cancelled()
