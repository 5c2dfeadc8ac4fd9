"""Queries wait in bounded queues, and a flood from one client does not delay another."""

import asyncio

from mosaic_bus import BusClient, topics
from mosaic_bus.commands import RunList, Runs, Stats
from mosaic_bus.service import Service
from mosaic_bus.service.queries import GONE_AFTER_S, IN_ALL, PER_CLIENT, QueryQueue
from mosaic_bus.wire.envelope import Header, Message

DEADLINE_S = 60


def query(number):
    return Message("command.x.", Header(str(number), "c", 1, 0, 0.0, 0.0), {})


def taken(queue, now=0.0):
    return [(client, message.header.id) for client, message in iter(lambda: queue.take(now), None)]


def test_clients_take_turns_and_none_takes_all_places():
    queue = QueryQueue(3)
    for number in range(5):
        assert queue.offer("flood", query(number), 0.0)
    assert taken(queue) == [("flood", "0"), ("flood", "1")]
    queue.offer("other", query(9), 0.0)
    assert taken(queue) == [("other", "9")]
    queue.done("flood")
    assert taken(queue) == [("flood", "2")]


def test_too_many_are_refused_per_client_and_in_all():
    queue = QueryQueue(1)
    offered = [queue.offer("a", query(number), 0.0) for number in range(PER_CLIENT + 3)]
    assert offered == [True] * PER_CLIENT + [False] * 3
    assert queue.offer("a", query(0), 0.0), "a repetition is the same query"
    clients = [queue.offer(f"c{number}", query(number), 0.0) for number in range(IN_ALL)]
    assert sum(clients) == IN_ALL - PER_CLIENT


def test_a_query_that_is_not_repeated_is_dropped_when_its_turn_comes():
    queue = QueryQueue(1)
    for number in range(3):
        queue.offer("a", query(number), 0.0)
    queue.offer("a", query(2), GONE_AFTER_S)
    assert taken(queue, GONE_AFTER_S + 1) == [("a", "2")]
    assert queue.dropped == 2


class Slow(Service):
    """Takes 10 ms to answer each query."""

    def __init__(self, home):
        super().__init__("slow", home)
        self.asked = []
        self.handle(Runs, self._on_runs)

    async def _on_runs(self, command):
        self.asked.append(command.group)
        await asyncio.sleep(0.01)
        return RunList(runs=[], total=len(self.asked))


def test_a_flood_from_one_client_does_not_hold_up_another(shared_broker):
    async def scenario():
        service = Slow(shared_broker.home)
        task = asyncio.create_task(service.run())
        async with BusClient(shared_broker.address) as flood, BusClient(shared_broker.address) as bus:
            await bus.request("slow", Stats(), DEADLINE_S)
            body = {"command": "runs", "reply_to": flood.id, "args": Runs(group="flood").model_dump(mode="json")}
            for _ in range(20):
                for _ in range(100):
                    flood.publish(topics.command("slow"), body)
                before = len(service.asked)
                await bus.request("slow", Runs(group="other"), DEADLINE_S)
                assert len(service.asked) - before < 2 * PER_CLIENT
            counters = (await bus.request("slow", Stats(), DEADLINE_S)).counters
            assert counters["busy"] > 0
            assert service.asked.count("other") == 20
            assert service.asked.count("flood") < 2000 - counters["busy"] + 1
        service.stop()
        await task

    asyncio.run(asyncio.wait_for(scenario(), 2 * DEADLINE_S))


def test_a_busy_service_is_asked_again_until_it_answers(shared_broker):
    async def scenario():
        service = Slow(shared_broker.home)
        task = asyncio.create_task(service.run())
        async with BusClient(shared_broker.address) as bus:
            await bus.request("slow", Stats(), DEADLINE_S)
            many = [bus.request("slow", Runs(group=str(number)), DEADLINE_S) for number in range(3 * PER_CLIENT)]
            await asyncio.gather(*many)
            assert (await bus.request("slow", Stats(), DEADLINE_S)).counters["busy"] > 0
        service.stop()
        await task

    asyncio.run(asyncio.wait_for(scenario(), 2 * DEADLINE_S))
