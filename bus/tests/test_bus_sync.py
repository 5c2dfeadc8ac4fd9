"""The synchronous client, `Bus`, for scripts and notebooks."""

import asyncio
import contextlib
import threading
import time

import pytest

from mosaic_bus import Bus, BusError, NotConnectedError
from mosaic_bus.commands import Info, Ping


def test_works_inside_a_running_loop_as_in_a_notebook(shared_broker):
    async def cell():
        with Bus(shared_broker.address) as bus:
            return bus.request("broker", Info()).service

    assert asyncio.run(cell()) == "broker"


def test_listen_yields_what_is_sent_from_then_on_and_ends_after_silence(shared_broker):
    with Bus(shared_broker.address) as bus:
        heard = bus.listen("sync.", timeout=0.3)
        for number in range(10):
            bus._loop.call_soon_threadsafe(bus.client.publish, "sync.", {"number": number})
        assert [message.payload["number"] for message in heard] == list(range(10))
        start = time.monotonic()
        assert list(bus.listen("silence.", timeout=0.1)) == []
        assert list(bus.listen("silence.", timeout=0)) == []
        assert time.monotonic() - start < 5


def test_endless_listen_ends_when_the_bus_is_closed_and_may_outlive_it(shared_broker):
    bus = Bus(shared_broker.address)
    heard = bus.listen("endless.")
    ended = threading.Event()

    def consume():
        # The bus may close during a wait or between two waits; BusError is allowed.
        with contextlib.suppress(BusError):
            list(heard)
        ended.set()

    thread = threading.Thread(target=consume)
    thread.start()
    late = bus.listen("late.", timeout=1)
    bus._loop.call_soon_threadsafe(bus.client.publish, "late.", {})
    next(late)
    bus.close()
    assert ended.wait(10)
    thread.join()
    late.close()
    with pytest.raises(BusError, match="closed"):
        bus.request("broker", Ping())
    bus.close()


def test_no_broker_leaves_no_thread(tmp_path, monkeypatch):
    before = threading.active_count()
    monkeypatch.setenv("MOSAIC_HOME", str(tmp_path))
    with pytest.raises(NotConnectedError):
        Bus(connect_timeout=0.1)
    monkeypatch.setenv("MOSAIC_BUS", "nonsense")
    with pytest.raises(BusError, match="nonsense"):
        Bus()
    assert threading.active_count() == before


@pytest.mark.slow
def test_listen_says_when_the_broker_is_gone(broker):
    with Bus(broker.address, connect_timeout=10) as bus:
        broker.kill()
        bus._connect_timeout = 0.3
        with pytest.raises(NotConnectedError):
            bus.listen("x.", timeout=1)
