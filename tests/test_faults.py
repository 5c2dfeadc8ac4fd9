"""Each part is killed while four workers write without pause: nothing is lost, doubled, misjudged or left behind."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import zmq
from small_disk import mounted
from stack import HOST, Stack, wait_until

from mosaic_bus import topics
from mosaic_bus.commands import Show, Stats, Streams
from mosaic_services.home import StackHome

EVENTS = 100_000


def start_four(stack: Stack, events: int = EVENTS, **config) -> list[str]:
    runs = [stack.submit(name=f"burst-{number}", config={"events": events, **config}) for number in range(4)]
    wait_until("all four emit", lambda: all(journal_bytes(stack, run) > 100_000 for run in runs))
    still_emitting = [run for run in runs if not (stack.home.runs / run / "1" / "exit.json").exists()]
    assert still_emitting == runs, "a run was over before the fault: it needs more events"
    return runs


def journal_bytes(stack: Stack, run: str) -> int:
    journal = stack.journal(run)
    return journal.stat().st_size if journal.exists() else 0


def assert_all_succeeded_and_stored(stack: Stack, runs: list[str], events: int = EVENTS) -> None:
    for run in runs:
        state = stack.wait_final(run)
        assert state.state == "succeeded", state
        stack.wait_stored(run)
    for run in runs:
        assert stack.assert_stored_exactly_once(run) == events + 2


def run_host_pid(stack: Stack, run: str) -> int:
    return json.loads((stack.home.runs / run / "1" / "host.json").read_bytes())["pid"]


@pytest.mark.slow
@pytest.mark.parametrize("service", ["telemetry", "broker", "scheduler", "supervisor"])
def test_service_killed_during_burst_loses_no_event(stack, service):
    runs = start_four(stack)
    stack.kill_and_restart(service)
    stack.wait_for(service)
    assert_all_succeeded_and_stored(stack, runs)


@pytest.mark.slow
def test_every_service_killed_twice_in_turn_loses_no_event(stack):
    runs = start_four(stack, events=3 * EVENTS)
    for service in ("telemetry", "broker", "supervisor", "scheduler", "telemetry", "supervisor", "broker"):
        stack.kill_and_restart(service)
        stack.wait_for(service)
    assert_all_succeeded_and_stored(stack, runs, events=3 * EVENTS)


@pytest.mark.slow
@pytest.mark.parametrize("paused", ["supervisor", "run host", "worker"])
def test_process_paused_and_continued_during_burst_loses_no_event_and_no_run(stack, paused):
    """A debugger, a laptop that sleeps, a frozen cgroup."""
    runs = start_four(stack, events=2 * EVENTS)
    host = psutil.Process(run_host_pid(stack, runs[0]))
    supervisor = psutil.Process(stack.processes["supervisor"].pid)
    process = {"supervisor": supervisor, "run host": host, "worker": host.children()[0]}[paused]
    process.suspend()
    paused_at = time.monotonic()
    # Longer than any time-out except the one after which a host counts as lost.
    wait_until("paused for long", lambda: time.monotonic() - paused_at > 6)
    process.resume()
    assert_all_succeeded_and_stored(stack, runs, events=2 * EVENTS)


@pytest.mark.slow
def test_run_host_killed_during_burst_fails_that_run_and_no_other(stack):
    runs = start_four(stack, events=2 * EVENTS)
    victim, *others = runs
    os.kill(run_host_pid(stack, victim), signal.SIGKILL)
    state = stack.wait_final(victim)
    assert (state.state, state.category) == ("failed", "infrastructure")
    assert "run host" in state.reason
    assert_all_succeeded_and_stored(stack, others, events=2 * EVENTS)
    stack.wait_stored(victim)
    stack.assert_stored_exactly_once(victim)


@pytest.mark.slow
def test_worker_killed_during_burst_fails_that_run_and_no_other(stack):
    runs = start_four(stack, events=2 * EVENTS)
    victim, *others = runs
    (worker,) = psutil.Process(run_host_pid(stack, victim)).children()
    worker.kill()
    state = stack.wait_final(victim)
    assert (state.state, state.category) == ("failed", "infrastructure")
    assert "signal 9" in state.reason
    assert_all_succeeded_and_stored(stack, others, events=2 * EVENTS)
    stack.wait_stored(victim)
    stack.assert_stored_exactly_once(victim)


@pytest.mark.slow
def test_supervisor_dead_while_its_runs_end_still_reports_and_stores_them(stack):
    runs = start_four(stack)
    stack.kill("supervisor")
    for run in runs:
        wait_until("the run ends by itself", (stack.home.runs / run / "1" / "exit.json").exists)
    stack.start("supervisor")
    assert_all_succeeded_and_stored(stack, runs)


@pytest.mark.slow
def test_everything_but_the_runs_killed_at_once(stack):
    runs = start_four(stack, events=2 * EVENTS)
    for service in ("supervisor", "scheduler", "telemetry", "broker"):
        stack.kill(service)
    for service in ("broker", "scheduler", "telemetry", "supervisor"):
        stack.start(service)
    assert_all_succeeded_and_stored(stack, runs, events=2 * EVENTS)


def watch_live(stack: Stack, run: str) -> tuple[list[int], float]:
    """Be a live reader: return the numbers of all journal lines until the run completes, and the time of that."""
    numbers: set[int] = set()
    for message in stack.bus.listen(topics.journal(run), timeout=30):
        batch = message.payload
        numbers.update(range(batch["first"], batch["first"] + batch["count"]))
        if b'"run_completed"' in message.buffers[0]:
            break
    return sorted(numbers), time.monotonic()


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [6, 60])
def test_aggregator_stopped_for_a_while_catches_up_and_live_readers_do_not_wait(stack, seconds):
    run = stack.submit(config={"events": 2_000 * seconds, "rate": 2_000})
    stack.wait_state(run, "running")
    with ThreadPoolExecutor() as pool:
        live = pool.submit(watch_live, stack, run)
        wait_until("it emits", lambda: journal_bytes(stack, run) > 100_000)
        stack.processes["telemetry"].send_signal(signal.SIGSTOP)
        stopped_at = time.monotonic()
        numbers, live_done_at = live.result()
        time.sleep(max(0.0, seconds - (time.monotonic() - stopped_at)))
        resumed_at = time.monotonic()
        stack.processes["telemetry"].send_signal(signal.SIGCONT)
    assert live_done_at < resumed_at
    stack.wait_stored(run)
    assert stack.assert_stored_exactly_once(run) == 2_000 * seconds + 2
    lines = len(stack.stored_lines(run))
    # The live reader subscribed after the start; from its first line on it has received every one.
    assert numbers == list(range(numbers[0], lines))
    (counters,) = [each for each in stack.bus.request("telemetry", Streams(run=run)).streams if each.kind == "journal"]
    # ZeroMQ may queue what is sent in six seconds, but not what is sent in a minute.
    assert counters.repaired > 0 or seconds < 60
    assert (counters.stored, counters.missing) == (lines, 0)


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 8 MB for the telemetry store."""
    yield from mounted(tmp_path / "home" / "telemetry", "8m")


@pytest.mark.slow
def test_disk_full_in_the_store_is_said_and_mended_when_there_is_room(small_disk, stack):
    runs = start_four(stack)

    def degraded() -> str:
        state = stack.bus.request("telemetry", Stats())
        return state.detail if state.status == "degraded" else ""

    assert "full" in wait_until("telemetry says that its disk is full", degraded)
    for run in runs:
        assert stack.wait_final(run).state == "succeeded"
    assert stack.processes["telemetry"].poll() is None
    subprocess.run(["mount", "-o", "remount,size=400m", small_disk], check=True)
    assert_all_succeeded_and_stored(stack, runs)
    assert stack.bus.request("telemetry", Stats()).status == "ok"


@pytest.mark.slow
def test_grandchildren_in_new_sessions_that_ignore_sigterm_are_gone_after_cancel(stack):
    run = stack.submit(config={"grandchildren": 3, "ignore_sigterm": True, "end": "hang"}, grace_s=1)
    stack.wait_state(run, "running")
    host = psutil.Process(run_host_pid(stack, run))
    family = wait_until(
        "all are there", lambda: len(host.children(recursive=True)) == 4 and host.children(recursive=True)
    )
    stack.cancel(run)
    assert stack.wait_final(run).state == "cancelled"
    assert [each for each in [host, *family] if each.is_running() and each.status() != psutil.STATUS_ZOMBIE] == []


@pytest.mark.slow
def test_subscriber_that_never_reads_disturbs_nobody(stack):
    context = zmq.Context()
    deaf = context.socket(zmq.SUB)
    deaf.setsockopt(zmq.RCVHWM, 1)
    deaf.setsockopt(zmq.LINGER, 0)
    deaf.connect(stack.home.address().egress)
    deaf.setsockopt(zmq.SUBSCRIBE, b"")
    try:
        runs = start_four(stack)
        assert_all_succeeded_and_stored(stack, runs)
    finally:
        deaf.close()
        context.term()


JUMPING_CLOCK = """
import os, time
real = time.time
def time_with_jumps():
    try:
        with open(os.environ["JUMP_FILE"]) as file:
            return real() + float(file.read() or 0)
    except FileNotFoundError:
        return real()
time.time = time_with_jumps
"""


@pytest.mark.slow
def test_wall_clock_that_jumps_hurts_nothing(tmp_path, workers):
    """`time.time` of the services is shifted, since a test cannot set the machine's clock."""
    patch = tmp_path / "patch"
    patch.mkdir()
    (patch / "sitecustomize.py").write_text(JUMPING_CLOCK)
    jump = tmp_path / "jump"
    environ = {"PYTHONPATH": str(patch), "JUMP_FILE": str(jump)}
    with Stack(tmp_path / "home", environ=environ) as stack:
        runs = [stack.submit(config={"events": 8_000, "rate": 2_000}) for _ in range(2)]
        hanging = stack.submit(config={"end": "hang"})
        for run in [*runs, hanging]:
            stack.wait_state(run, "running", "succeeded")
        for seconds in (86_400, -86_400 * 365, 3_600):
            jump.write_text(str(seconds))
            before = stack.bus.request("scheduler", Stats()).counters["published"]
            wait_until(
                "the scheduler goes on",
                lambda before=before: stack.bus.request("scheduler", Stats()).counters["published"] > before + 2,
            )
            assert stack.state(hanging).state == "running"
        assert_all_succeeded_and_stored(stack, runs, events=8_000)
        stack.cancel(hanging)
        assert stack.wait_final(hanging).state == "cancelled"
    assert stack.leftovers() == []


@pytest.mark.slow
def test_supervisor_told_to_end_stops_its_runs_and_says_so(stack):
    run = stack.submit(config={"end": "hang"})
    stack.wait_state(run, "running")
    stack.processes["supervisor"].terminate()
    assert stack.processes["supervisor"].wait(30) == 0
    state = stack.wait_final(run)
    assert state.state == "cancelled"
    assert "supervisor" in state.reason
    detail = stack.bus.request("scheduler", Show(run=run))
    assert detail.attempts[0]["attempt"] == 1


@pytest.mark.slow
def test_supervisor_told_to_end_takes_nothing_new_from_the_queue(tmp_path, workers):
    with Stack(tmp_path / "home", cpus=1) as stack:
        runs = [stack.submit(config={"end": "hang"}, resources={"cpus": 1, "memory_mb": 128}) for _ in range(3)]
        stack.wait_state(runs[0], "running")
        stack.processes["supervisor"].terminate()
        assert stack.processes["supervisor"].wait(30) == 0
        assert stack.wait_final(runs[0]).state == "cancelled"
        assert [stack.state(run).state for run in runs[1:]] == ["queued", "queued"]
        assert list((stack.home.runs).glob(f"{runs[1]}/*")) == []
    assert stack.leftovers() == []


@pytest.mark.slow
def test_last_line_that_cannot_be_parsed_stops_neither_the_supervisor_nor_the_other_runs(stack):
    hanging = stack.submit(config={"end": "hang"})
    stack.wait_state(hanging, "running")
    deep = base64.b64encode(b"[" * 60_000).decode()
    poisoned = stack.submit(config={"raw": [deep], "end": "abort"})
    assert (stack.wait_final(poisoned).state, stack.state(poisoned).exit_code) == ("failed", 1)
    stack.kill_and_restart("supervisor")
    stack.wait_for("supervisor")
    stack.wait_stored(poisoned)
    assert stack.state(hanging).state == "running"
    stack.cancel(hanging)
    assert stack.wait_final(hanging).state == "cancelled"


@pytest.mark.slow
def test_second_supervisor_of_the_same_name_is_refused(stack, tmp_path):
    other = StackHome.find(tmp_path / "other")
    other.create()
    address = f"ipc://{stack.home.sockets}"
    command = [
        sys.executable,
        "-m",
        "mosaic_services.supervisor",
        "--home",
        other.path,
        "--bus",
        address,
        "--host",
        HOST,
    ]
    refused = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    assert refused.returncode == 2
    assert f"another supervisor.{HOST}" in refused.stderr


@pytest.fixture
def small_disk_for_runs(tmp_path):
    """A file system of 4 MB for the runs."""
    yield from mounted(tmp_path / "home" / "runs", "4m")


@pytest.mark.slow
def test_disk_full_below_the_runs_makes_them_wait_and_fails_none(small_disk_for_runs, stack):
    ballast = small_disk_for_runs / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb") as file:
        while True:
            file.write(b"x" * 65536)
    runs = [stack.submit(config={"events": 10}) for _ in range(5)]

    def all_wait_and_say_why() -> bool:
        # The scheduler offers one to the host now and then; it is *starting* until the host refuses.
        states = [stack.state(run) for run in runs]
        assert {each.state for each in states} <= {"queued", "starting"}
        return all(each.state == "queued" and "cannot write" in each.reason for each in states)

    wait_until("all wait and say why", all_wait_and_say_why)
    ballast.unlink()
    for run in runs:
        assert stack.wait_final(run).state == "succeeded"
