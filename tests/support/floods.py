"""Floods: client processes that overload a stack, and a well-behaved client that measures its latency.

`python floods.py KIND HOME RUN` floods the stack of a home until it is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import zmq
from ulid import ULID

from mosaic_bus import BusClient, topics
from mosaic_bus.commands import Runs, Stats, Summaries
from mosaic_bus.connections import MAX_SUBSCRIPTIONS
from mosaic_services.home import StackHome
from mosaic_services.telemetry.columns import read_journal
from mosaic_services.telemetry.store import Store
from mosaic_services.telemetry.streams import StreamKey

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mosaic_bus import Bus
    from mosaic_bus.wire.address import Address

EPISODES = 200
# Commands that a flood sends between two pauses.
_BURST = 20
_PAUSE_S = 0.005
# Maximum number of connections that a flood keeps open.
_OPEN = 500


def fill(home: StackHome, runs: int) -> list[str]:
    """Store runs with episodes for queries to read, before the stack starts; return the run ids."""
    store = Store(home.telemetry_store)
    store.open()
    store.begin()
    events = ({"event": "episode", "episode": n, "return": float(n), "step": n, "ts": 1.0} for n in range(EPISODES))
    journal = read_journal(b"".join(json.dumps(each).encode() + b"\n" for each in events))
    names = [str(ULID()) for _ in range(runs)]
    for number, run in enumerate(names):
        entry = store.find(StreamKey(run, 1, "journal"), "testhost")
        store.add_journal(entry.id, 0, journal)
        entry.summary.add(journal)
        store.save(entry, float(number))
    store.commit()
    store.close()
    return names


async def _send(address: Address, service: str, command: str, args: dict[str, object]) -> None:
    """Send a command repeatedly, each time with a new id, without waiting for answers."""
    async with BusClient(address) as bus:
        body = {"command": command, "reply_to": bus.id, "args": args}
        while True:
            for _ in range(_BURST):
                bus.publish(topics.command(service), body)
            await asyncio.sleep(_PAUSE_S)


def _subscribe(address: Address) -> None:
    """Open one connection after another and exceed the limit of subscriptions on each."""
    with zmq.Context() as context:
        while True:
            with context.socket(zmq.SUB) as greedy:
                greedy.setsockopt(zmq.SNDHWM, 0)
                greedy.setsockopt(zmq.LINGER, 0)
                monitor = greedy.get_monitor_socket(zmq.EVENT_DISCONNECTED)
                greedy.connect(address.egress)
                for number in range(MAX_SUBSCRIPTIONS + 100):
                    greedy.subscribe(f"topic{number}.")
                monitor.poll(10_000)
                greedy.disable_monitor()
                monitor.close(0)


def _connect(address: Address) -> None:
    """Open connections to both sockets of the broker; close the oldest ones."""
    with zmq.Context() as context:
        opened: list[zmq.Socket[bytes]] = []
        while True:
            for kind, endpoint in ((zmq.SUB, address.egress), (zmq.DEALER, address.ingress)):
                try:
                    opened.append(context.socket(kind))
                except zmq.ZMQError:  # ZeroMQ is still closing earlier sockets.
                    time.sleep(_PAUSE_S)
                    continue
                opened[-1].connect(endpoint)
            while len(opened) > _OPEN:
                opened.pop(0).close(0)


FLOODS: dict[str, Callable[[Address, str], object]] = {
    "summaries": lambda at, _: asyncio.run(_send(at, "telemetry", "summaries", {"limit": 200})),
    "series": lambda at, run: asyncio.run(_send(at, "telemetry", "series", {"run": run, "metric": "episode_return"})),
    "runs": lambda at, _: asyncio.run(_send(at, "scheduler", "runs", {})),
    "commands": lambda at, run: asyncio.run(_send(at, "scheduler", "cancel", {"run": run})),
    "subscriptions": lambda at, _: _subscribe(at),
    "connections": lambda at, _: _connect(at),
}


@contextlib.contextmanager
def flood(kind: str, home: StackHome, run: str) -> Iterator[None]:
    """Flood a stack during the `with` block."""
    with subprocess.Popen([sys.executable, __file__, kind, str(home.path), run]) as client:
        try:
            yield
            assert client.poll() is None, f"the flood of {kind} ended with {client.returncode}"
        finally:
            client.kill()


def ask(bus: Bus, count: int, pause_s: float = 0.02) -> list[float]:
    """Query telemetry and the scheduler alternately, with pauses; return the sorted latencies in milliseconds."""
    took = []
    for number in range(count):
        service, query = ("telemetry", Summaries(limit=50)) if number % 2 else ("scheduler", Runs(limit=50))
        began = time.perf_counter()
        bus.request(service, query, timeout=120)
        took.append(1000 * (time.perf_counter() - began))
        time.sleep(pause_s)
    return sorted(took)


def refused(bus: Bus) -> dict[str, int]:
    """Return the counts of refusals so far: busy answers, closed subscribers, refused connections."""
    found = {service: bus.request(service, Stats(), timeout=120).counters for service in ("telemetry", "scheduler")}
    broker = bus.request("broker", Stats(), timeout=120).counters
    return {
        "busy": int(sum(each.get("busy", 0) for each in found.values())),
        "closed_subscribers": int(broker.get("forward_closed_subscribers", 0)),
        "refused_connections": int(broker.get("forward_refused_connections", 0)),
    }


def percentile(took: list[float], part: float) -> float:
    """Return a percentile of sorted figures; `part` is from 0 to 1."""
    return took[min(len(took) - 1, int(part * len(took)))]


if __name__ == "__main__":
    FLOODS[sys.argv[1]](StackHome.find(sys.argv[2]).address(), sys.argv[3])
