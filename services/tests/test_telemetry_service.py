"""The aggregator as a process on a real bus: lost batches, kill -9, a full disk, a long absence."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from fake_bridge import FakeBridge, File
from small_disk import mounted
from ulid import ULID

from mosaic_bus import BusClient, CommandRefusedError, topics
from mosaic_bus.commands import Episodes, Events, Info, Logs, Metrics, Ping, Series, Stats, Streams, Summaries
from mosaic_bus.errors import HomeInUseError
from mosaic_bus.messages import RunSummary, ServiceState
from mosaic_services.home import StackHome
from mosaic_services.telemetry.service import TelemetryService

if TYPE_CHECKING:
    from pathlib import Path


class Processes:
    """A broker and a telemetry aggregator of one home."""

    def __init__(self, home: StackHome) -> None:
        self.home = home
        home.create()
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.start("broker")

    def start(self, service: str) -> None:
        with (self.home.logs / f"{service}.log").open("ab") as log:
            self.running[service] = subprocess.Popen(
                [sys.executable, "-m", f"mosaic_services.{service}", "--home", str(self.home.path)], stderr=log
            )

    def kill(self, service: str) -> None:
        process = self.running.pop(service)
        process.kill()
        process.wait()

    def send(self, service: str, number: int) -> None:
        os.kill(self.running[service].pid, number)

    def end(self) -> None:
        for process in self.running.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for name, process in self.running.items():
            code = process.wait(20)
            assert code == 0, (name, code, (self.home.logs / f"{name}.log").read_text()[-3000:])

    def rows(self, sql: str, *values: object) -> list[tuple]:
        with contextlib.closing(sqlite3.connect(self.home.telemetry_store)) as db:
            return db.execute(sql, values).fetchall()

    def assert_stored_once(self, *files: File) -> None:
        """Compare the stored lines with those that were written."""
        for file in files:
            table = "events" if file.kind == "journal" else "logs"
            rows = self.rows(
                f"SELECT id & ((1 << 40) - 1), line FROM {table} WHERE id >> 40 ="
                " (SELECT id FROM streams WHERE run = ? AND attempt = ? AND kind = ?) ORDER BY id",
                *(file.run, file.attempt, file.kind),
            )
            assert [number for number, _ in rows] == list(range(len(file.lines)))
            assert [line.encode() if isinstance(line, str) else line for _, line in rows] == file.lines


@pytest.fixture
def processes(tmp_path):
    processes = Processes(StackHome.find(tmp_path / "home"))
    yield processes
    processes.end()


def steps(start: int, count: int) -> list[bytes]:
    return [
        json.dumps(
            {"event": "step", "step": step, "reward": 0.5, "info": {"pad": "x" * 80}, "ts": float(step)}
        ).encode()
        for step in range(start, start + count)
    ]


def new_run() -> str:
    return str(ULID())


async def wait_for_telemetry(bus: BusClient) -> None:
    await bus.request("telemetry", Ping(), timeout=30)


async def wait_for_status(bus: BusClient, status: str) -> ServiceState:
    async with bus.subscribe(topics.service_state("telemetry")) as states, asyncio.timeout(30):
        async for message in states:
            state = ServiceState.model_validate(message.payload)
            if state.status == status:
                return state
    raise AssertionError("the subscription ended")


# ── loss ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_lost_doubled_and_reordered_batches_are_stored_exactly_once(processes):
    chance = random.Random(5)

    async def scenario() -> None:
        processes.start("telemetry")
        bridge = FakeBridge(
            processes.home.address(),
            passes=lambda _batch, repair: chance.choices((1, 0, 2), (90, 5, 5) if repair else (80, 10, 10))[0],
            shuffle=lambda messages: chance.shuffle(messages) if chance.random() < 0.1 else None,
        )
        async with bridge:
            await wait_for_telemetry(bridge.bus)
            runs = [new_run() for _ in range(3)]
            for run in runs:
                bridge.open(run).write(*steps(0, 20_000))
                bridge.open(run, "log").write(*(b"line %d \xff" % number for number in range(3000)))
            for file in bridge.files:
                file.ended = True
            await bridge.until_whole(deadline_s=60)
            streams = (await bridge.bus.request("telemetry", Streams(run=runs[0]))).streams
            assert [(each.kind, each.stored, each.missing, each.final) for each in streams] == [
                ("journal", 20_000, 0, True),
                ("log", 3000, 0, True),
            ]
            assert all(each.received + each.repaired == each.stored for each in streams)
            assert bridge.resends > 0
        processes.assert_stored_once(*bridge.files)

    asyncio.run(scenario())


@pytest.mark.slow
def test_lost_tail_is_noticed_without_a_later_batch(processes):
    async def scenario() -> None:
        processes.start("telemetry")
        # All live batches from line 500 on are lost, so only the host's announcement shows the hole.
        bridge = FakeBridge(processes.home.address(), passes=lambda batch, repair: int(repair or batch.first < 500))
        async with bridge:
            await wait_for_telemetry(bridge.bus)
            file = bridge.open(new_run())
            file.write(*steps(0, 2000))
            file.ended = True
            await bridge.until_whole()
            streams = (await bridge.bus.request("telemetry", Streams(run=file.run))).streams
            assert (streams[0].received, streams[0].repaired, streams[0].final) == (500, 1500, True)
        processes.assert_stored_once(file)

    asyncio.run(scenario())


# ── absence ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_telemetry_killed_during_a_stream_stores_every_line_once(processes):
    async def scenario() -> None:
        processes.start("telemetry")
        async with FakeBridge(processes.home.address()) as bridge:
            await wait_for_telemetry(bridge.bus)
            files = [bridge.open(new_run()) for _ in range(2)]
            cut_short = 0
            for number in range(3):
                for file in files:
                    file.write(*steps(20_000 * number, 20_000))
                target = 20_000 * number + 5000
                await bridge.until("it is in mid-stream", lambda target=target: files[0].stored > target)
                processes.kill("telemetry")
                [(stored,)] = processes.rows("SELECT sum(number) FROM streams")
                cut_short += stored < sum(len(file.lines) for file in files)
                processes.start("telemetry")
            assert cut_short > 0
            for file in files:
                file.write(b'{"event":"run_completed","ts":1}')
                file.ended = True
            await bridge.until_whole(deadline_s=60)
            # The end of an attempt is noticed a moment after its last line is stored.
            async with asyncio.timeout(10):
                while True:
                    [summary] = (await bridge.bus.request("telemetry", Summaries(runs=[files[0].run]))).summaries
                    if summary.complete:
                        break
            assert (summary.events, summary.step) == (60_001, 59_999)
            assert (summary.outcome, summary.missing) == ("run_completed", 0)
        processes.assert_stored_once(*files)

    asyncio.run(scenario())


@pytest.mark.slow
def test_telemetry_stopped_for_a_while_catches_up(processes):
    async def scenario() -> None:
        processes.start("telemetry")
        async with FakeBridge(processes.home.address()) as bridge:
            await wait_for_telemetry(bridge.bus)
            file = bridge.open(new_run())
            file.write(*steps(0, 1000))
            await bridge.until("it stores", lambda: file.stored == 1000)
            processes.send("telemetry", signal.SIGSTOP)
            bridge.storing = False  # as the real bridge does when the store is silent
            file.write(*steps(1000, 60_000))
            file.ended = True
            await bridge.until("all is published", lambda: file.sent == len(file.lines))
            processes.send("telemetry", signal.SIGCONT)
            await bridge.until_whole(deadline_s=60)
        processes.assert_stored_once(file)

    asyncio.run(scenario())


@pytest.mark.slow
def test_sigterm_stores_what_has_arrived_and_a_restart_continues(processes):
    async def scenario() -> None:
        processes.start("telemetry")
        async with FakeBridge(processes.home.address()) as bridge:
            await wait_for_telemetry(bridge.bus)
            file = bridge.open(new_run())
            file.write(*steps(0, 10_000))
            await bridge.until("it stores", lambda: file.stored > 0)
            processes.send("telemetry", signal.SIGTERM)
            assert processes.running["telemetry"].wait(20) == 0
            processes.start("telemetry")
            file.ended = True
            await bridge.until_whole()
        processes.assert_stored_once(file)

    asyncio.run(scenario())


# ── a full disk ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def small_disk(processes):
    """A file system of 40 MB for the store."""
    yield from mounted(processes.home.telemetry_store.parent, "40m")


@pytest.mark.slow
def test_disk_full_degrades_and_catches_up_when_there_is_room(processes, small_disk):
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 36_000_000)

    async def scenario() -> None:
        processes.start("telemetry")
        async with FakeBridge(processes.home.address()) as bridge:
            await wait_for_telemetry(bridge.bus)
            storing: list[bool] = []
            bridge.on_stored = lambda stored: storing.append(stored.storing)
            file = bridge.open(new_run())
            file.write(*steps(0, 40_000))  # 6 MB, more than the 5 MB that are free
            state = await wait_for_status(bridge.bus, "degraded")
            assert "disk full" in state.detail
            await bridge.until("bridges are told", lambda: not storing[-1])
            before = processes.running["telemetry"].pid
            filler.unlink()
            await wait_for_status(bridge.bus, "ok")
            file.ended = True
            await bridge.until_whole(deadline_s=40)
            assert storing[-1]
            assert processes.running["telemetry"].pid == before
        processes.assert_stored_once(file)

    asyncio.run(scenario())


@pytest.mark.slow
def test_ended_and_started_again_while_the_disk_is_full(processes, small_disk):
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 36_000_000)

    async def scenario() -> None:
        processes.start("telemetry")
        async with FakeBridge(processes.home.address()) as bridge:
            await wait_for_telemetry(bridge.bus)
            storing: list[bool] = []
            bridge.on_stored = lambda stored: storing.append(stored.storing)
            file = bridge.open(new_run())
            file.write(*steps(0, 40_000))
            await wait_for_status(bridge.bus, "degraded")
            # After SIGKILL there is a write-ahead log to reuse; after SIGTERM there is none, and no room for one.
            for way in (signal.SIGKILL, signal.SIGTERM, signal.SIGKILL):
                processes.send("telemetry", way)
                assert processes.running["telemetry"].wait(20) in {0, -signal.SIGKILL}
                fill_up(small_disk)
                storing.clear()
                processes.start("telemetry")
                await wait_for_telemetry(bridge.bus)
                state = await wait_for_status(bridge.bus, "degraded")
                assert "disk full" in state.detail
                await bridge.until("bridges are told", lambda: storing and not storing[-1])
                assert await refusal_of_a_query(bridge.bus) in {"", "store_unavailable"}
            before = processes.running["telemetry"].pid
            for path in small_disk.glob("filler*"):
                path.unlink()
            await wait_for_status(bridge.bus, "ok")
            file.ended = True
            await bridge.until_whole(deadline_s=40)
            assert processes.running["telemetry"].pid == before
        processes.assert_stored_once(file)

    asyncio.run(scenario())


@pytest.mark.slow
def test_first_start_on_a_full_disk(processes, small_disk):
    fill_up(small_disk)

    async def scenario() -> None:
        processes.start("telemetry")
        async with FakeBridge(processes.home.address()) as bridge:
            await wait_for_telemetry(bridge.bus)
            file = bridge.open(new_run())
            file.write(*steps(0, 2000))
            assert "disk full" in (await wait_for_status(bridge.bus, "degraded")).detail
            with pytest.raises(CommandRefusedError, match="cannot be read now") as refusal:
                await bridge.bus.request("telemetry", Summaries())
            assert refusal.value.code == "store_unavailable"
            (small_disk / "filler-more").unlink()
            await wait_for_status(bridge.bus, "ok")
            file.ended = True
            await bridge.until_whole(deadline_s=40)
        processes.assert_stored_once(file)

    asyncio.run(scenario())


async def refusal_of_a_query(bus: BusClient) -> str:
    """Ask for the summaries; whether they can be read while the disk is full depends on SQLite."""
    try:
        await bus.request("telemetry", Summaries())
    except CommandRefusedError as error:
        return error.code
    return ""


def fill_up(folder: Path) -> None:
    """Fill a file system completely."""
    with contextlib.suppress(OSError), (folder / "filler-more").open("ab", buffering=0) as file:
        while file.write(bytes(65536)) == 65536:
            pass
        while file.write(bytes(512)):
            pass


# ── starting ────────────────────────────────────────────────────────────────────────────────────────


def test_second_aggregator_of_a_home_does_not_count_as_a_start(tmp_path):
    home = StackHome.find(tmp_path / "home")
    home.create()

    async def scenario() -> None:
        with home.lock("telemetry"), pytest.raises(HomeInUseError):
            TelemetryService(home)

    asyncio.run(scenario())
    assert not (home.path / "epochs" / "telemetry").exists()


# ── queries ───────────────────────────────────────────────────────────────────────────────────────


def test_summaries_are_published_and_queries_answered(processes):
    async def scenario() -> None:
        processes.start("telemetry")
        async with FakeBridge(processes.home.address()) as bridge:
            await wait_for_telemetry(bridge.bus)
            file = bridge.open(new_run())
            log = bridge.open(file.run, "log")
            async with bridge.bus.subscribe(topics.summary(file.run)) as published:
                file.write(*steps(0, 100))
                file.write(b'{"event":"episode","episode":0,"return":3.5,"length":100,"step":99,"ts":100}')
                file.write(b'{"event":"scalars","step":99,"values":{"loss":0.25},"ts":100}', b"no json")
                log.write(b"hello", b"world")
                file.ended = log.ended = True
                bodies = []
                async with asyncio.timeout(20):
                    async for message in published:
                        bodies.append(RunSummary.model_validate(message.payload))
                        if bodies[-1].complete:
                            break
            body = bodies[-1]
            assert (body.events, body.step, body.episodes, body.return_mean) == (103, 99, 1, 3.5)
            assert (body.malformed, body.scalars, body.missing) == (1, {"loss": 0.25}, 0)
            bus, run = bridge.bus, file.run
            assert (await bus.request("telemetry", Summaries(runs=[run]))).summaries[0].complete
            assert (await bus.request("telemetry", Metrics(run=run))).metrics == {
                "reward": 100,
                "episode_return": 1,
                "episode_length": 1,
                "loss": 1,
            }
            series = (await bus.request("telemetry", Series(runs=[run], metrics=["loss"]))).only
            assert (series.steps, series.values, series.points) == ([99], [0.25], 1)
            assert (await bus.request("telemetry", Episodes(run=run))).rows[0]["length"] == 100
            events = await bus.request("telemetry", Events(run=run, kinds=["malformed"]))
            assert [(row["number"], row["line"]) for row in events.rows] == [(102, "no json")]
            assert "not JSON" in events.rows[0]["reason"]
            assert [row["line"] for row in (await bus.request("telemetry", Logs(run=run))).rows] == ["hello", "world"]
            with pytest.raises(CommandRefusedError, match="nothing is stored of run 'nope'") as refusal:
                await bus.request("telemetry", Metrics(run="nope"))
            assert refusal.value.code == "unknown_run"
            stats = await bus.request("telemetry", Stats())
            assert stats.counters["stored"] == 105
            assert "series" in (await bus.request("telemetry", Info())).commands

    asyncio.run(scenario())


@pytest.mark.slow
def test_line_nested_a_thousand_deep_does_not_end_the_aggregator(processes):
    async def scenario() -> None:
        processes.start("telemetry")
        async with FakeBridge(processes.home.address()) as bridge:
            await wait_for_telemetry(bridge.bus)
            file = bridge.open(new_run())
            deep = b"[" * 1000 + b"]" * 1000
            file.write(b'{"event":"malformed","reason":%b}' % deep, b'{"event":"run_started","task":%b}' % deep)
            file.write(b'{"event":"episode","agent":%b,"return":1}' % deep, *steps(0, 10))
            file.ended = True
            await bridge.until_whole(deadline_s=10)
            [summary] = (await bridge.bus.request("telemetry", Summaries(runs=[file.run]))).summaries
            assert (summary.events, summary.malformed, summary.task) == (13, 1, "list")
            assert (await bridge.bus.request("telemetry", Episodes(run=file.run))).rows[0]["agent"] is None
        processes.assert_stored_once(file)

    asyncio.run(scenario())


@pytest.mark.slow
def test_nonsense_on_the_bus_is_counted_and_harmless(processes):
    async def scenario() -> None:
        processes.start("telemetry")
        async with FakeBridge(processes.home.address()) as bridge:
            bus = bridge.bus
            await wait_for_telemetry(bus)
            run = new_run()
            good = {"host": "fake", "run": run, "attempt": 1, "kind": "journal", "offset": 0}
            for payload, buffers in [
                ({}, ()),
                ({**good, "first": 0, "count": 1, "end": 5}, ()),
                ({**good, "first": 0, "count": 2, "end": 5}, (b"{}\n",)),
                ({**good, "first": 0, "count": 1, "end": 5}, (b"{}",)),
                ({**good, "first": -1, "count": 1, "end": 5}, (b"{}\n",)),
                ({**good, "first": 2**60, "count": 1, "end": 5}, (b"{}\n",)),
                ({**good, "first": 0, "count": 1, "end": 2**70}, (b"{}\n",)),
                ({**good, "first": 0, "count": 1, "end": 5, "attempt": 2**70}, (b"{}\n",)),
                (
                    {**good, "first": 5, "count": 1, "end": 5, "host": "hö"},
                    (b"{}\n",),
                ),  # no valid host
                ({**good, "first": 0, "count": 1, "end": 5, "run": "hö"}, (b"{}\n",)),
            ]:
                bus.publish(topics.journal(run), payload, buffers)
            bus.publish(topics.streams("fake"), {"host": "fake", "tails": [{"run": 5}]})
            bus.publish(topics.streams("fake"), {"host": "fake", "tails": "x"})
            bus.publish(topics.streams("fake"), {"host": "../fake", "tails": []})
            far = {"run": run, "attempt": 1, "kind": "journal", "sent": {"number": 2**70, "offset": 5}, "final": True}
            bus.publish(topics.streams("else"), {"host": "else", "tails": [far]})
            file = bridge.open(run)
            file.write(*steps(0, 10))
            file.ended = True
            await bridge.until_whole()
            assert (await bus.request("telemetry", Stats())).counters["bad_batches"] == 14
        processes.assert_stored_once(file)

    asyncio.run(scenario())
