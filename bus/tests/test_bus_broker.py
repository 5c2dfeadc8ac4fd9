"""The broker as a process: restarts, invalid input, slow subscribers and connection limits."""

import asyncio
import contextlib
import random
import resource
import signal
import socket
import stat
import struct
import subprocess
import sys
import time
from collections import Counter

import msgpack
import psutil
import pytest
import zmq
from stack import wait_until

from mosaic_bus import Bus, BusClient, Home, NotConnectedError
from mosaic_bus.commands import Info, Ping, Stats
from mosaic_bus.connections import MAX_SUBSCRIPTIONS, MOST_UNREAD, Connections
from mosaic_bus.errors import TooManySubscriptionsError

DEADLINE_S = 120
# A subscriber that reads nothing until a line arrives on stdin. Then it reads to the message marked `last` and prints
# three counts: messages received, gaps in `seq`, messages sent.
STOPPED_READER = """
import sys, msgpack, zmq
sub = zmq.Context().socket(zmq.SUB)
sub.connect(sys.argv[1])
sub.subscribe(b"heavy.")
sub.subscribe(b"~welcome.reader.")
assert sub.recv_multipart()[0] == b"~welcome.reader."
print("ready", flush=True)
sys.stdin.readline()
seqs = []
while True:
    parts = sub.recv_multipart()
    seqs.append(msgpack.unpackb(parts[1])["seq"])
    if msgpack.unpackb(parts[2]).get("last"):
        break
missed = sum(later - earlier - 1 for earlier, later in zip(seqs, seqs[1:], strict=False)) + seqs[0]
print(len(seqs), missed, seqs[-1] + 1, flush=True)
"""


def free_port():
    """Return a free port whose successor is free, too."""
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                two.bind(("127.0.0.1", port + 1))
                return port


def is_socket(path):
    return path.exists() and stat.S_ISSOCK(path.stat().st_mode)


@contextlib.contextmanager
def dealer(address):
    """A raw ZeroMQ client, for messages that break our protocol."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as raw:
        raw.setsockopt(zmq.LINGER, 0)
        raw.setsockopt(zmq.RCVTIMEO, DEADLINE_S * 1000)
        raw.connect(address.ingress)
        yield raw


def test_broker_answers_commands_and_counts_messages(shared_broker):
    with Bus(shared_broker.address, connect_timeout=DEADLINE_S) as bus:
        info = bus.request("broker", Info())
        assert info.pid == shared_broker.process.pid
        assert info.commands == ["info", "ping", "stats"]
        counters = bus.request("broker", Stats()).counters
        assert counters["forward_published"] > 0
        assert counters["subscriptions"] >= 2


@pytest.mark.slow
def test_second_broker_in_one_home_refuses_clearly_and_does_not_count_as_a_start(broker):
    with Bus(broker.address, connect_timeout=DEADLINE_S) as bus:
        second = broker.run_second()
        assert second.returncode == 2
        assert f"another broker (pid {broker.process.pid}) already runs" in second.stderr
        assert bus.request("broker", Ping())
    broker.end()
    broker.start()
    with Bus(broker.address, connect_timeout=DEADLINE_S) as bus:
        assert bus.request("broker", Info()).epoch == 2


@pytest.mark.slow
def test_brokers_of_two_homes_cannot_take_each_others_sockets(broker, tmp_path):
    with Bus(broker.address, connect_timeout=DEADLINE_S) as bus:
        other = Home.find(tmp_path / "other")
        ended = subprocess.run(
            [
                sys.executable,
                "-m",
                "mosaic_services.broker",
                "--home",
                other.path,
                "--bus",
                f"ipc://{broker.home.sockets}",
            ],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert ended.returncode == 2
        assert "already runs" in ended.stderr
        assert bus.request("broker", Ping())


@pytest.mark.parametrize(
    ("bus", "said"),
    [
        ("tcp://0.0.0.0:5550", "no keys"),
        pytest.param("tcp://127.0.0.1:port", "bus address", marks=pytest.mark.slow),
        pytest.param("ipc:///dev/null/x", "Not a directory", marks=pytest.mark.slow),
        ("taken", "Address already in use"),
    ],
)
def test_broker_that_cannot_start_says_why_in_one_line_and_exits_with_2(tmp_path, bus, said):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}" if bus == "taken" else bus
        ended = subprocess.run(
            [sys.executable, "-m", "mosaic_services.broker", "--home", tmp_path / "home", "--bus", address],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    assert said in ended.stderr
    assert ended.returncode == 2, ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_ended_by_a_signal_leaves_no_socket(broker, number):
    with Bus(broker.address, connect_timeout=DEADLINE_S):
        assert is_socket(broker.home.sockets / "in.sock")
        broker.process.send_signal(number)
        assert broker.process.wait(DEADLINE_S) == 0
    assert not list(broker.home.sockets.glob("*.sock"))


@pytest.mark.slow
def test_killed_broker_leaves_sockets_and_the_next_one_works(broker):
    with Bus(broker.address, connect_timeout=DEADLINE_S):
        broker.kill()
    assert is_socket(broker.home.sockets / "in.sock")
    broker.start()
    with Bus(broker.address, connect_timeout=DEADLINE_S) as bus:
        assert bus.request("broker", Info()).epoch == 2


@pytest.mark.slow
def test_home_with_strange_letters(start_broker, tmp_path):
    broker = start_broker(folder=tmp_path / "exp #1? ä%20")
    with Bus(broker.address, connect_timeout=DEADLINE_S) as bus:
        assert bus.request("broker", Ping())
    assert is_socket(tmp_path / "exp #1? ä%20" / "bus" / "in.sock")


@pytest.mark.parametrize(
    "host", ["127.0.0.1", *(pytest.param(each, marks=pytest.mark.slow) for each in ("[::1]", "localhost"))]
)
def test_broker_on_tcp(start_broker, host):
    if host == "[::1]":
        try:
            with socket.socket(socket.AF_INET6) as probe:
                probe.bind(("::1", 0))
        except OSError:
            pytest.skip("this machine has no IPv6")
    broker = start_broker("--bus", f"tcp://{host}:{free_port()}")
    with Bus(broker.address, connect_timeout=DEADLINE_S) as bus:
        assert bus.request("broker", Ping())


def header(**changes):
    fields = {"v": 2, "id": "X", "src": "raw", "epoch": 1, "seq": 0, "wall": 0.0, "mono": 0.0}
    return msgpack.packb({**fields, **changes})


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ([b"only one"], "bad_message"),
        ([b"a.", b"b"], "bad_message"),
        ([b"a.", b"\xc1", b"\x80"], "bad_message"),
        ([b"no dot", header(), b"\x80"], "bad_message"),
        ([b"a.", header(seq="x"), b"\x80"], "bad_message"),
        ([b"a.", header(id=["x" * 10_000]), b"\x80"], "bad_message"),
        ([b"a.", header(new="x" * 10_000_000), b"\x80"], "bad_message"),
        ([b"a.", header(v=1), b"\x80"], "wrong_version"),
        ([b"a.", header(v=["x" * 10_000]), b"\x80"], "wrong_version"),
        ([b"a.", header(), b"\x80", bytes(40_000_000), bytes(40_000_000)], "too_large"),
        ([b"a.", header(seq=2**60), b"\x80"], "bad_message"),
        ([b"a.", header(), b"\x80", *[b""] * 100_000], "bad_message"),
    ],
)
def test_bad_message_is_answered_with_an_error(shared_broker, parts, code):
    with dealer(shared_broker.address) as raw:
        raw.send_multipart(parts)
        topic, head, payload = raw.recv_multipart()
        assert topic == b"error."
        assert msgpack.unpackb(head)["src"] == "broker.wire"
        answer = msgpack.unpackb(payload)
        assert answer["code"] == code
        assert len(answer["message"]) < 600


def garbage(address, rng):
    """Send bytes that are not ZeroMQ to both sockets."""
    for endpoint in (address.ingress, address.egress):
        if endpoint.startswith("ipc://"):
            raw = socket.socket(socket.AF_UNIX)
            raw.connect(endpoint.removeprefix("ipc://"))
        else:
            host, port = endpoint.removeprefix("tcp://").split(":")
            raw = socket.create_connection((host, int(port)))
        with raw, contextlib.suppress(OSError):
            raw.settimeout(1)
            raw.sendall(
                rng.choice([b"GET / HTTP/1.1\r\n\r\n", b"\xff" + bytes(8) + b"\x7f", b""]) + rng.randbytes(2000)
            )


@pytest.mark.parametrize("kind", ["ipc", pytest.param("tcp", marks=pytest.mark.slow)])
def test_noise_does_not_disturb_a_healthy_client(start_broker, kind):
    broker = start_broker(*(["--bus", f"tcp://127.0.0.1:{free_port()}"] if kind == "tcp" else []))
    rng = random.Random(7)
    with Bus(broker.address, connect_timeout=DEADLINE_S) as bus, dealer(broker.address) as raw:
        heard = bus.listen("healthy.", timeout=5)
        for number in range(30):
            garbage(broker.address, rng)
            raw.send_multipart([rng.randbytes(rng.randrange(50)) for _ in range(rng.randrange(1, 6))])
            # A part larger than the message limit closes its connection and has no other effect.
            if number % 15 == 0:
                with dealer(broker.address) as large:
                    large.setsockopt(zmq.LINGER, 2000)
                    large.send_multipart([b"a.", header(), b"\x80", bytes(65 * 1024 * 1024)], copy=False)
            bus._loop.call_soon_threadsafe(bus.client.publish, "healthy.", {"number": number})
            assert next(heard).payload["number"] == number
            assert bus.request("broker", Ping())
        assert bus.request("broker", Stats()).counters["forward_refused"] >= 30
        assert bus.client.counters["missed"] == bus.client.counters["refused"] == 0
        heard.close()
    assert broker.process.poll() is None
    assert broker.log_file.read_text().count('"refused"') < 40


@pytest.mark.slow
def test_subscriber_that_never_reads_costs_bounded_memory_and_disturbs_nobody(broker):
    size, count = 100_000, 2000

    async def publish_all(bus, heard):
        for number in range(count):
            while not bus.publish("heavy.", {"number": number}, [bytes(size)]):
                await asyncio.sleep(0.001)
            # The healthy subscriber keeps up: it reads every 100 messages.
            if number % 100 == 99:
                for _ in range(100):
                    assert await heard.next(DEADLINE_S) is not None

    async def scenario(reader):
        memory = psutil.Process(broker.process.pid).memory_info
        async with BusClient(broker.address) as bus, bus.subscribe("heavy.") as heard:
            before = memory().rss
            await publish_all(bus, heard)
            grown = memory().rss - before
            assert bus.counters["missed"] == heard.dropped == 0
            assert bus.counters["published"] == bus._stamper.stamp("heavy.").seq
            # The broker queues 500 messages (50 MB) for the stopped subscriber; 200 MB were published.
            assert grown < 110e6, f"{grown / 1e6:.0f} MB"
            print(f"broker grew by {grown / 1e6:.0f} MB")
            reader.send_signal(signal.SIGCONT)
            reader.stdin.write("go\n")
            reader.stdin.flush()
            deadline = time.monotonic() + DEADLINE_S
            while reader.poll() is None:
                assert time.monotonic() < deadline
                bus.publish("heavy.", {"last": True})
                await asyncio.sleep(0.05)

    Bus(broker.address, connect_timeout=DEADLINE_S).close()
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED_READER, broker.address.egress],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as reader:
        try:
            assert reader.stdout.readline() == "ready\n"
            reader.send_signal(signal.SIGSTOP)
            asyncio.run(asyncio.wait_for(scenario(reader), 100))
            got, missed, sent = map(int, reader.stdout.readline().split())
            assert got + missed == sent
            assert missed > 0
        finally:
            reader.kill()


@pytest.mark.slow
def test_many_clients_come_and_go(broker):
    async def one(number):
        async with BusClient(broker.address) as bus, bus.subscribe(f"brief.{number}.") as heard:
            bus.publish(f"brief.{number}.", {"number": number})
            assert (await heard.next(DEADLINE_S)).payload == {"number": number}

    async def scenario():
        for start in range(0, 100, 20):
            await asyncio.gather(*(one(number) for number in range(start, start + 20)))
        async with BusClient(broker.address) as bus:
            deadline = time.monotonic() + DEADLINE_S
            while (await bus.request("broker", Stats())).counters["subscriptions"] > 10:
                assert time.monotonic() < deadline, "subscriptions of those who left are still counted"

    Bus(broker.address, connect_timeout=DEADLINE_S).close()
    asyncio.run(asyncio.wait_for(scenario(), 100))
    assert psutil.Process(broker.process.pid).num_fds() < 60


def connect_subscriber(context, address):
    """Connect one more subscriber and wait for ZeroMQ to report the connection."""
    socket = context.socket(zmq.SUB)
    socket.setsockopt(zmq.RECONNECT_IVL, -1)
    monitor = socket.get_monitor_socket(zmq.EVENT_CONNECTED)
    socket.connect(address.egress)
    assert monitor.poll(60_000)
    socket.disable_monitor()
    monitor.close(0)
    return socket


@pytest.mark.slow
def test_without_descriptors_new_connections_are_refused_and_old_ones_served(start_broker):
    broker = start_broker(files=200)
    with Bus(broker.address, connect_timeout=60) as bus, zmq.Context() as context:
        heard = bus.listen("still.", timeout=60)
        flood = []
        while not bus.request("broker", Stats(), timeout=60).counters.get("forward_refused_connections"):
            assert len(flood) < 200
            flood.append(connect_subscriber(context, broker.address))
        bus.client.publish("still.", {"served": True})
        assert next(heard).payload == {"served": True}
        for socket in flood:
            socket.close(0)

        def welcome():
            with contextlib.suppress(NotConnectedError), Bus(broker.address, connect_timeout=1) as other:
                return other.request("broker", Ping(), timeout=60)

        wait_until("a newcomer is welcome", welcome)
    assert broker.process.poll() is None


# Connects to two sockets alternately, as fast as possible, and keeps all connections until stdin closes.
BURST = """
import resource, socket, sys
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
opened = []
for number in range(int(sys.argv[1])):
    opened.append(socket.socket(socket.AF_UNIX))
    opened[-1].connect(sys.argv[2 + number % 2])
print("connected", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_burst_of_more_connections_than_descriptors_does_not_end_the_broker(start_broker):
    limit = 4096
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 2 * limit:
        pytest.skip(f"a process may not have {2 * limit} files open here")
    broker = start_broker(files=limit)
    paths = [endpoint.removeprefix("ipc://") for endpoint in (broker.address.ingress, broker.address.egress)]
    with Bus(broker.address, connect_timeout=60) as bus:
        command = [sys.executable, "-c", BURST, str(limit + 1000), *paths]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as burst:
            try:
                assert burst.stdout.readline() == "connected\n"
                wait_until(
                    "the rest is refused",
                    lambda: bus.request("broker", Stats(), timeout=60).counters.get("forward_refused_connections"),
                )
                assert psutil.Process(broker.process.pid).num_fds() < limit
            finally:
                burst.kill()
        assert bus.request("broker", Ping(), timeout=60)
    assert broker.process.poll() is None
    assert "too many connections" in broker.log_file.read_text()


@pytest.mark.slow
def test_zeromq_accepts_no_more_connections_than_reports_may_be_unread(tmp_path):
    """Otherwise a burst could use up all descriptors before the broker's next look, and ZeroMQ would abort."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if allowed < 4 * MOST_UNREAD:
        pytest.skip(f"a process may have only {allowed} files open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))
    path = tmp_path / "in.sock"
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        connections = Connections(Counter(), router)
        router.bind(f"ipc://{path}")
        before = psutil.Process().num_fds()
        peers = []
        with contextlib.suppress(BlockingIOError):
            while len(peers) < 2 * MOST_UNREAD:
                peers.append(socket.socket(socket.AF_UNIX))
                wait_s = 2 if len(peers) > MOST_UNREAD else DEADLINE_S
                peers[-1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", wait_s, 0))
                peers[-1].connect(str(path))
        accepted = psutil.Process().num_fds() - before - len(peers)
        assert MOST_UNREAD <= accepted <= MOST_UNREAD + 1
        connections.look()
        peers[-1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", DEADLINE_S, 0))
        peers[-1].connect(str(path))
        for each in peers:
            each.close()
        connections.close()


@pytest.mark.slow
def test_a_connection_that_subscribes_without_end_is_closed_and_others_are_served(broker):
    with Bus(broker.address, connect_timeout=60) as bus, zmq.Context() as context:
        greedy = context.socket(zmq.SUB)
        greedy.setsockopt(zmq.SNDHWM, 0)
        greedy.connect(broker.address.egress)
        for number in range(MAX_SUBSCRIPTIONS + 100):
            greedy.subscribe(f"topic{number}.")

        def closed():
            return bus.request("broker", Stats(), timeout=60).counters.get("forward_closed_subscribers")

        wait_until("it is closed", closed)
        assert "too many subscriptions" in broker.log_file.read_text()
        greedy.close(0)
        with pytest.raises(TooManySubscriptionsError):
            bus.subscribe(*(f"mine{number}." for number in range(MAX_SUBSCRIPTIONS + 1)), max_queue=1)
