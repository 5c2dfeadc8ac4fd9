"""Messages and megabytes per second through the broker, without loss: client → broker → client, three processes."""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

from mosaic_bus import BusClient, Subscription
from mosaic_services.home import StackHome

if TYPE_CHECKING:
    from mosaic_bus.wire.address import Address

# Messages in flight: fewer than the broker queues for a subscriber, so none is dropped.
WINDOW = 200
ACKNOWLEDGE_EVERY = 50


async def read(address: Address, count: int) -> None:
    """The reading process: read `count` messages and report progress."""
    async with BusClient(address) as bus, bus.subscribe("bench.data.") as data:
        print("ready", flush=True)
        for number in range(1, count + 1):
            message = await data.next(20)
            if message is None:
                sys.exit(f"nothing arrived after message {number - 1} of {count}")
            if number % ACKNOWLEDGE_EVERY == 0 or number == count:
                bus.publish("bench.read.", {"number": number})
        if bus.counters["missed"]:
            sys.exit(f"{bus.counters['missed']} messages were lost")


async def next_number(acknowledged: Subscription) -> int:
    """Wait for the next progress report of the reader."""
    message = await acknowledged.next(20)
    if message is None:
        sys.exit("the reader fell silent")
    return int(message.payload["number"])


async def write(address: Address, count: int, size: int) -> float:
    """Write `count` messages, at most a window ahead of the reader; return the seconds until all are read."""
    payload = {"number": 0}
    buffer = b"x" * size
    read_so_far = 0
    async with BusClient(address) as bus, bus.subscribe("bench.read.") as acknowledged:
        start = time.perf_counter()
        for number in range(count):
            while number - read_so_far >= WINDOW:
                read_so_far = await next_number(acknowledged)
            while not bus.publish("bench.data.", payload, [buffer]):
                await asyncio.sleep(0.001)
            if number % ACKNOWLEDGE_EVERY == 0:
                await asyncio.sleep(0)
        while read_so_far < count:
            read_so_far = await next_number(acknowledged)
        return time.perf_counter() - start


def measure(home: StackHome, count: int, size: int) -> None:
    """Start a reader, write to it, print the rates."""
    command = [sys.executable, __file__, "--read", str(count), "--home", str(home.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None  # noqa: S101 - for the type checker
        reader.stdout.readline()
        seconds = asyncio.run(write(home.address(), count, size))
        if reader.wait():
            sys.exit("the reader failed")
    print(f"{size:>8} bytes: {count / seconds:>9,.0f} messages/s {count * size / seconds / 1e6:>9,.1f} MB/s")


def main() -> None:
    """Start a broker, measure, stop it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000, help="messages of each size")
    parser.add_argument("--sizes", type=int, nargs="+", default=[64, 100_000], help="bytes of the buffer")
    parser.add_argument("--home", help=argparse.SUPPRESS)
    parser.add_argument("--read", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.read:
        asyncio.run(read(StackHome.find(arguments.home).address(), arguments.read))
        return
    with tempfile.TemporaryDirectory() as folder:
        home = StackHome.find(arguments.home or folder)
        home.create()
        command = [sys.executable, "-m", "mosaic_services.broker", "--home", str(home.path)]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as broker:
            try:
                for size in arguments.sizes:
                    measure(home, arguments.count, size)
            finally:
                broker.terminate()


if __name__ == "__main__":
    main()
