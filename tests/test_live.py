"""Following runs of a whole stack: what it costs on the wire, and that nothing is missed when services are killed."""

import time

import pytest
import zmq
from stack import PATIENCE_S

from mosaic_bus.client.live import is_settled

WORKERS = 4
EVENTS = 50_000


class Meter:
    """Counts the bytes that a subscriber to some prefixes receives."""

    def __init__(self, context, address, *prefixes):
        self.socket = context.socket(zmq.SUB)
        self.socket.setsockopt(zmq.RCVHWM, 0)
        self.socket.connect(address.egress)
        for prefix in prefixes:
            self.socket.subscribe(prefix)
        self.bytes = self.messages = 0

    def read(self):
        while self.socket.poll(0):
            self.bytes += sum(map(len, self.socket.recv_multipart()))
            self.messages += 1


@pytest.mark.slow
def test_states_and_summaries_are_under_one_percent_of_the_journals_bytes_in_a_burst(stack):
    with zmq.Context() as context:
        dashboard = Meter(context, stack.home.address(), "summary.", "state.")
        archive = Meter(context, stack.home.address(), "journal.")
        with stack.bus.follow() as view:
            runs = {stack.submit(config={"events": EVENTS}) for _ in range(WORKERS)}
            deadline = time.monotonic() + PATIENCE_S
            while not all(run in view.runs and is_settled(view.runs[run], view.summaries.get(run)) for run in runs):
                assert time.monotonic() < deadline
                dashboard.read()
                archive.read()
                view.wait(0.05)
            assert [view.runs[run].state for run in runs] == ["succeeded"] * WORKERS
            assert all(view.summaries[run].events >= EVENTS for run in runs)
        for meter in (dashboard, archive):
            meter.read()
            meter.socket.close(0)
    assert dashboard.messages >= 2 * WORKERS
    assert archive.bytes > WORKERS * EVENTS * 100
    print(f"states and summaries: {dashboard.bytes:,} bytes, journals: {archive.bytes:,}")
    assert dashboard.bytes < archive.bytes / 100


@pytest.mark.slow
def test_a_follower_misses_no_end_when_every_service_is_killed_in_turn(stack):
    stack.wait_stored(stack.submit(config={}))  # By then the worker's environment is there.
    with stack.bus.follow(hosts=False) as view:
        runs = set()
        for service in ("scheduler", "telemetry", "broker", "supervisor"):
            runs |= {stack.submit(config={"events": 3000, "rate": 3000}) for _ in range(2)}
            stack.kill_and_restart(service)
            stack.wait_for(service)
        deadline = time.monotonic() + PATIENCE_S
        while not all(run in view.runs and is_settled(view.runs[run], view.summaries.get(run)) for run in runs):
            assert time.monotonic() < deadline, (view.runs, view.summaries, view.silent)
            view.wait(1.0)
        for run in runs:
            assert view.runs[run].state == stack.state(run).state == "succeeded"
            assert view.summaries[run].events == stack.summary(run).events
        counted = {"succeeded": len(runs) + 1}
        while view.counts != counted:
            assert time.monotonic() < deadline, view.counts
            view.wait(1.0)
