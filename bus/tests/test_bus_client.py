"""The client against a real broker: publishing, subscribing, commands, restarts."""

import asyncio
import time
from typing import ClassVar

import msgpack
import pytest
import zmq
import zmq.asyncio

from mosaic_bus import Address, BusClient, CommandRefusedError, Home, NoAnswerError, NotConnectedError, topics
from mosaic_bus.commands import Ack, Cancel, Command, Info, Ping, RunList, Runs, Series, Stats
from mosaic_bus.errors import BadAddressError, BadMessageError, MessageTooLargeError
from mosaic_bus.messages import BuildProgress, Model
from mosaic_bus.refusals import RefusalCode, RefusalDetails
from mosaic_bus.service import Service
from mosaic_bus.service import base as service_module
from mosaic_bus.wire import envelope

DEADLINE_S = 120


def run(scenario):
    async def main():
        async with asyncio.timeout(60):
            await scenario

    asyncio.run(main())


async def until(what, condition):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {DEADLINE_S} s"
        await asyncio.sleep(0.01)


class Counting(Service):
    """A service that counts the `cancel` commands it carries out. `may_answer` holds its answers back."""

    def __init__(self, home, name="counting"):
        super().__init__(name, home)
        self.done = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.handle(Cancel, self._on_cancel)
        self.handle(Runs, self._on_runs)

    async def _on_cancel(self, command):
        self.done += 1
        await self.may_answer.wait()
        if command.run == "refuse":
            raise CommandRefusedError(RefusalCode.ALREADY_FINAL, "it has ended", RefusalDetails(state="failed"))
        if command.run == "fail":
            raise RuntimeError("a bug")
        if command.run == "huge":
            return Ack(note="x" * envelope.MAX_MESSAGE_BYTES)
        if command.run == "odd":
            raise CommandRefusedError(RefusalCode.NOT_FINAL, "cannot be encoded", RefusalDetails(value=object()))
        return Ack(note=f"{self.done}")

    async def _on_runs(self, command):
        raise AssertionError("not reached: its arguments are invalid")


class BadRuns(Command[RunList]):
    """A `runs` command with invalid arguments, as a buggy client might send it."""

    name: ClassVar[str] = "runs"
    result: ClassVar[type[Model]] = RunList
    states: int = 7
    limit: int = 0
    surplus: str = "x"


async def refused_by(bus, command, args):
    """Send arguments that bypass model validation; return the refusal."""
    async with bus.subscribe(topics.reply(bus.id)):
        message_id = envelope.new_id()
        bus._answers[message_id] = answer = asyncio.get_running_loop().create_future()
        bus.publish(
            topics.command("counting"),
            {"command": command, "reply_to": bus.id, "args": args},
            message_id=message_id,
        )
        payload = await asyncio.wait_for(answer, DEADLINE_S)
    return CommandRefusedError.received(payload["error"])


class Running:
    """Runs a service in the test's event loop until the block ends."""

    def __init__(self, service):
        self.service = service

    async def __aenter__(self):
        self.task = asyncio.create_task(self.service.run())
        return self.service

    async def __aexit__(self, *_):
        self.service.stop()
        await self.task


def test_forty_of_forty_messages_sent_right_after_connecting_arrive_in_order(shared_broker):
    async def scenario():
        async with BusClient(shared_broker.address) as reader, reader.subscribe("forty.") as heard:
            async with BusClient(shared_broker.address) as writer:
                for number in range(40):
                    assert writer.publish("forty.x.", {"number": number}, [b"raw", bytes([number])])
                got = [await heard.next(DEADLINE_S) for _ in range(40)]
            assert [each.payload["number"] for each in got] == list(range(40))
            assert [each.header.seq for each in got] == list(range(40))
            assert got[7].buffers == (b"raw", b"\x07")
            assert {each.header.src for each in got} == {writer.source}
            assert reader.counters["missed"] == reader.counters["dropped"] == 0

    run(scenario())


def test_bodies_are_models_and_prefixes_select(shared_broker):
    async def scenario():
        async with (
            BusClient(shared_broker.address) as bus,
            bus.subscribe("build.a.", "build.b.", "build.b") as heard,
        ):
            body = BuildProgress(host="a", worker="w", profile="p", step="s", percent=1)
            for host in ("c", "a", "ab", "b"):
                bus.publish(topics.build(host), body)
            got = [await heard.next(DEADLINE_S) for _ in range(2)]
            assert [each.topic for each in got] == ["build.a.", "build.b."]
            assert BuildProgress.model_validate(got[0].payload) == body
            await bus.synced()
            assert heard.take_all() == []

    run(scenario())


def test_subscription_made_later_is_in_force_when_synced(shared_broker):
    async def scenario():
        async with BusClient(shared_broker.address) as bus:
            for number in range(20):
                heard = bus.subscribe(f"later{number}.")
                await bus.synced()
                bus.publish(f"later{number}.", {})
                assert await heard.next(DEADLINE_S) is not None
                heard.close()
                assert await heard.next(0) is None
                with pytest.raises(StopAsyncIteration):
                    await anext(heard)

    run(scenario())


@pytest.mark.slow
def test_two_thousand_subscriptions_are_all_in_force(shared_broker):
    async def scenario():
        async with BusClient(shared_broker.address) as bus:
            heard = [bus.subscribe(f"many.{number}.") for number in range(2000)]
            await bus.synced()
            for number in range(0, 2000, 20):
                bus.publish(f"many.{number}.", {})
            for number in range(0, 2000, 20):
                assert await heard[number].next(DEADLINE_S) is not None

    run(scenario())


def test_overflow_drops_the_oldest_and_counts(shared_broker):
    async def scenario():
        async with BusClient(shared_broker.address) as bus:
            small = bus.subscribe("over.", max_queue=5)
            async with bus.subscribe("over.") as all_:
                for number in range(20):
                    bus.publish("over.", {"number": number})
                for _ in range(20):
                    await all_.next(DEADLINE_S)
            assert [each.payload["number"] for each in small.take_all()] == [15, 16, 17, 18, 19]
            assert small.dropped == bus.counters["dropped"] == 15

    run(scenario())


def test_jumps_of_seq_are_counted_as_missed_per_source_epoch_and_topic(shared_broker):
    async def scenario():
        async with BusClient(shared_broker.address) as bus:
            heard = bus.subscribe("gap.")
            await bus.synced()
            raw = zmq.asyncio.Context.instance().socket(zmq.DEALER)
            raw.connect(shared_broker.address.ingress)
            try:

                async def send(topic, epoch, seq):
                    header = envelope.Header("x", "raw", epoch, seq, 0, 0)
                    await raw.send_multipart([topic, header.pack(), b"\x80"])
                    assert await heard.next(DEADLINE_S) is not None
                    return bus.counters["missed"]

                assert await send(b"gap.a.", 1, 7) == 0
                assert await send(b"gap.a.", 1, 8) == 0
                assert await send(b"gap.a.", 1, 11) == 2
                assert await send(b"gap.b.", 1, 90) == 2
                assert await send(b"gap.a.", 2, 0) == 2
                assert await send(b"gap.a.", 2, 2) == 3
                heard.close()
                heard = bus.subscribe("gap.")
                await bus.synced()
                assert await send(b"gap.a.", 2, 50) == 3
                assert await bus.request("broker", Ping())
            finally:
                raw.close(0)

    run(scenario())


def test_connect_without_a_broker_raises_not_connected(tmp_path):
    async def scenario():
        with pytest.raises(NotConnectedError, match="mosaic up"):
            await BusClient(Address.parse(f"ipc://{tmp_path}")).connect(timeout=0.2)

    run(scenario())


def test_nobody_answers(shared_broker):
    async def scenario():
        async with BusClient(shared_broker.address) as bus:
            with pytest.raises(NoAnswerError, match="nobody did not answer 'ping'"):
                await bus.request("nobody", Ping(), timeout=0.2)
            assert not bus._answers

    run(scenario())


def test_too_large_or_invalid_messages_are_refused(shared_broker):
    async def scenario():
        async with BusClient(shared_broker.address) as bus:
            with pytest.raises(MessageTooLargeError):
                bus.publish("big.", {}, [bytes(envelope.MAX_MESSAGE_BYTES)])
            with pytest.raises(BadMessageError):
                bus.publish("odd.", {"a": object()})
            bus.publish("no dot at the end", {})
            await until("refusal", lambda: bus.counters["refused"] == 1)
            assert await bus.request("broker", Ping())

    run(scenario())


def test_unreadable_payload_from_a_stranger_is_counted_and_the_client_goes_on(shared_broker):
    async def scenario():
        async with BusClient(shared_broker.address) as bus, bus.subscribe("noise.") as heard:
            for payload in (b"\xc1", b"\x93", b"\x81\xa1a" * 5000):
                bus.publish_packed("noise.", payload)
            bus.publish("noise.", {"good": True})
            assert (await heard.next(DEADLINE_S)).payload == {"good": True}
            assert bus.counters["bad"] == 3

    run(scenario())


def test_flood_does_not_starve_other_tasks(shared_broker):
    async def scenario():
        async with BusClient(shared_broker.address) as bus, bus.subscribe("flood.", max_queue=100):
            turns = 0

            async def other():
                nonlocal turns
                while True:
                    await asyncio.sleep(0)
                    turns += 1

            task = asyncio.create_task(other())
            for _ in range(5):
                for _ in range(200):
                    bus.publish("flood.", {})
                before = bus.counters["received"]
                await until("flood arrives", lambda before=before: bus.counters["received"] > before + 150)
            task.cancel()
            assert turns > 10

    run(scenario())


def test_welcome_that_is_lost_is_asked_for_again(tmp_path):
    async def scenario():
        context = zmq.asyncio.Context()
        # A fake broker that drops the first welcomes: a real one drops them only while a queue is full.
        router, xpub = context.socket(zmq.ROUTER), context.socket(zmq.XPUB)
        address = Address.parse(f"ipc://{tmp_path}")
        router.bind(address.ingress)
        xpub.bind(address.egress)
        asked = set()
        stamper = envelope.Stamper("fake", 1)

        async def welcome():
            while True:
                frame = await xpub.recv()
                if frame.startswith(b"\x01~welcome."):
                    asked.add(frame[1:])
                    if len(asked) >= 3:
                        message = envelope.Message(frame[1:].decode(), stamper.stamp("x."), {})
                        await xpub.send_multipart(envelope.encode(message))

        task = asyncio.create_task(welcome())
        async with BusClient(address) as bus:
            assert bus.counters["received"] >= 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        context.destroy(0)

    run(scenario())


@pytest.mark.slow
def test_on_welcome_that_fails_does_not_make_the_client_deaf(broker):
    async def scenario():
        welcomes = []

        def fail():
            welcomes.append(1)
            raise RuntimeError("a bug of the caller")

        async with BusClient(broker.address) as bus:
            bus.on_welcome.append(fail)
            broker.kill()
            broker.start()
            await until("welcome", lambda: welcomes)
            assert await bus.request("broker", Ping())

    run(scenario())


@pytest.mark.slow
def test_broker_killed_and_restarted_welcomes_again_and_subscriptions_hold(broker):
    async def scenario():
        welcomes = []
        async with (
            BusClient(broker.address) as reader,
            BusClient(broker.address) as writer,
            reader.subscribe("again.") as heard,
        ):
            assert (await reader.request("broker", Info())).epoch == 1
            reader.on_welcome.append(lambda: welcomes.append(1))
            broker.kill()
            assert (broker.home.sockets / "in.sock").exists()
            asking = asyncio.create_task(writer.request("broker", Info(), timeout=DEADLINE_S))
            await until("nothing can be sent", lambda: not writer.publish("again.", {}))
            broker.start()
            await until("welcome", lambda: len(welcomes) == 1)
            assert (await asking).epoch == 2
            await until("can be sent", lambda: writer.publish("again.", {"after": True}))
            while (await heard.next(DEADLINE_S)).payload != {"after": True}:
                pass

    run(scenario())


@pytest.mark.slow
def test_command_is_answered_although_the_service_comes_later(shared_broker):
    async def scenario():
        async with BusClient(shared_broker.address) as bus:
            asking = asyncio.create_task(bus.request("counting", Cancel(run="x"), timeout=DEADLINE_S))
            await until("asked", lambda: bus.counters["published"] >= 1)
            async with Running(Counting(shared_broker.home)) as service:
                assert (await asking).note == "1"
            async with Running(Counting(shared_broker.home)) as service:
                assert (await bus.request("counting", Info(), timeout=DEADLINE_S)).epoch == service.epoch

    run(scenario())


def test_command_that_arrives_five_times_is_carried_out_once_and_answered_each_time(shared_broker):
    async def scenario():
        async with BusClient(shared_broker.address) as bus, Running(Counting(shared_broker.home)) as service:
            await bus.request("counting", Ping(), timeout=DEADLINE_S)
            answers = bus.subscribe("reply.someone.")
            await bus.synced()
            service.may_answer.clear()
            body = {"command": "cancel", "reply_to": "someone", "args": {"run": "x"}}
            for _ in range(2):
                bus.publish("command.counting.", body, message_id="SAME")
            await until("begun", lambda: service.done == 1)
            service.may_answer.set()
            assert (await answers.next(DEADLINE_S)).header.cor == "SAME"
            for _ in range(3):
                bus.publish("command.counting.", body, message_id="SAME")
                again = await answers.next(DEADLINE_S)
                assert again.payload == {"ok": True, "result": {"note": "1"}}
            assert service.done == 1
            assert (await bus.request_as("SAME2", "counting", Cancel(run="x"), 5)).note == "2"
            assert (await bus.request_as("SAME2", "counting", Cancel(run="x"), 5)).note == "2"

    run(scenario())


def test_refusals_carry_code_message_and_details(shared_broker):
    async def scenario():
        async with BusClient(shared_broker.address) as bus, Running(Counting(shared_broker.home)):
            await bus.request("counting", Ping(), timeout=DEADLINE_S)

            async def refusal(command):
                with pytest.raises(CommandRefusedError) as caught:
                    await bus.request("counting", command, timeout=DEADLINE_S)
                return caught.value

            error = await refusal(Cancel(run="refuse"))
            assert (error.code, error.message) == (RefusalCode.ALREADY_FINAL, "it has ended")
            assert error.details == RefusalDetails(state="failed")
            error = await refusal(Series(runs=["x"], metrics=["y"]))
            assert error.code == "unknown_command"
            assert error.details.value == "series"
            assert error.details.allowed == ["cancel", "info", "ping", "runs", "stats"]
            error = await refusal(Cancel(run="fail"))
            assert (error.code, error.message) == ("internal", "counting failed on 'cancel': RuntimeError: a bug")
            error = await refusal(BadRuns())
            assert error.code == "invalid_arguments"
            assert [(each.field, each.value) for each in error.details.problems] == [
                ("states", 7),
                ("limit", 0),
                ("surplus", "x"),
            ]
            assert "limit: must be at least 1, got 0" in error.message
            for args in ({"limit": True}, {1: 2}, {"states": [{b"x": 1}]}):
                error = await refused_by(bus, "runs", args)
                assert (error.code, len(error.details.problems)) == ("invalid_arguments", 1)
            assert (await refusal(Cancel(run="huge"))).code == "too_large"
            assert (await refusal(Cancel(run="odd"))).code == "internal"
            assert (await bus.request("counting", Stats())).status == "ok"

    run(scenario())


def nested(levels):
    value: object = 1
    for _ in range(levels):
        value = [value]
    return value


def test_hostile_commands_do_not_stop_a_service(shared_broker):
    async def scenario():
        async with BusClient(shared_broker.address) as bus, Running(Counting(shared_broker.home)) as service:
            await bus.request("counting", Ping(), timeout=DEADLINE_S)
            hostile = [
                {},
                {"reply_to": "é", "command": "ping"},
                {"reply_to": "x" * 1000, "command": "ping"},
                {"reply_to": 5, "command": "ping"},
                {"reply_to": "a.b", "command": "ping"},
                {"reply_to": "x", "command": ["ping"] * 100_000},
                {"reply_to": "x", "command": {"ping": 1}},
                {"reply_to": "x", "command": "cancel", "args": [1]},
                {"reply_to": "x", "command": "cancel", "args": None},
                {"reply_to": "x", "command": "cancel", "args": {"run": "y" * 1_000_000, "surplus": "z" * 1_000_000}},
                {"reply_to": "x", "command": "cancel", "args": {"run": "y", "z" * 1_000_000: 1}},
                {"reply_to": "x", "command": "cancel", "args": dict.fromkeys(map(str, range(50_000)))},
                {"reply_to": "x", "command": nested(1000)},
                {"reply_to": "x", "command": "cancel", "args": {"run": nested(1000)}},
            ]
            async with bus.subscribe("reply.x.") as answers:
                for payload in hostile:
                    bus.publish("command.counting.", payload)
                for _ in range(9):
                    answer = await answers.next(DEADLINE_S)
                    assert answer.payload["ok"] is False
                    assert len(answer.payload["error"]["message"]) < 2000
            bus.publish("command.counting.", {"reply_to": "x", "command": "ping"}, message_id="i" * 10_000)
            huge = envelope.Header("i", "s", 1, 2**64 - 1, 0, 0)
            bus._out_now.send_multipart([b"command.counting.", huge.pack(), msgpack.packb({"reply_to": "x"})])
            assert (await bus.request("counting", Stats())).counters["unanswerable"] == 6
            assert service._failure is None

    run(scenario())


def test_service_that_waits_for_a_broker_ends_when_told_to(tmp_path, shared_broker):
    async def scenario():
        home = Home.find(tmp_path)
        home.create()
        service = Counting(home)
        task = asyncio.create_task(service.run())
        await until("connecting", lambda: service.bus._context is not None)
        service.stop()
        await asyncio.wait_for(task, 5)
        assert service.bus._context is None

    run(scenario())


def test_service_that_loses_its_broker_during_start_up_can_be_stopped(broker, monkeypatch):
    monkeypatch.setattr(service_module, "_BEGIN_S", 0.1)

    async def scenario():
        service = Counting(broker.home)
        connect = service.bus.connect

        async def connect_and_lose_it(timeout):
            await connect(timeout)
            broker.kill()

        monkeypatch.setattr(service.bus, "connect", connect_and_lose_it)
        task = asyncio.create_task(service.run())
        await until("connected", lambda: broker.process.poll() is not None)
        await asyncio.sleep(0.5)  # longer than the check that the service's name is free
        assert not task.done()
        service.stop()
        await asyncio.wait_for(task, DEADLINE_S)

    run(scenario())


def test_invalid_address_raises_a_bus_error(tmp_path):
    async def scenario():
        bus = BusClient(Address("tcp://no such host:5550", "tcp://no such host:5551"))
        with pytest.raises(BadAddressError, match="no such host"):
            await bus.connect()
        assert bus._context is None

    run(scenario())


def test_answer_that_is_not_as_documented_is_a_bus_error(shared_broker):
    with pytest.raises(BadMessageError, match="'ping'"):
        BusClient._read_answer({"ok": True, "result": {"note": 7}}, Ping())
    for payload in ({}, {"error": "text"}, {"error": {"details": [1]}}):
        with pytest.raises(CommandRefusedError) as caught:
            BusClient._read_answer(payload, Ping())
        assert (caught.value.code, caught.value.details) == (RefusalCode.UNKNOWN, RefusalDetails())
    newer = CommandRefusedError.received({"code": "newer", "message": "no", "details": {"near": ["x"], "more": 1}})
    assert (newer.code, newer.message, newer.details.near) == (RefusalCode.UNKNOWN, "no (newer)", ["x"])
