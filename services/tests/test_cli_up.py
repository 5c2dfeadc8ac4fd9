"""`mosaic up` and `mosaic down` with real processes: what dies comes back, what is stopped leaves nothing."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest
from stack import STRESS, wait_until

from mosaic_services.home import StackHome
from mosaic_services.stack import leftovers

if TYPE_CHECKING:
    from collections.abc import Iterator

MOSAIC = [sys.executable, "-m", "mosaic_services.cli"]
SERVICES = {"broker", "scheduler", "telemetry", "operator", "gateway", "supervisor"}


class Place:
    """A home, and what runs in it."""

    def __init__(self, path: Path) -> None:
        self.started: list[subprocess.Popen[str]] = []
        self.path = path
        self.env = {**os.environ, "MOSAIC_HOME": str(path), "NO_COLOR": "1", "MOSAIC_WORKERS": str(STRESS)}
        self.env.pop("MOSAIC_BUS", None)

    def mosaic(self, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*MOSAIC, *arguments], env=self.env, capture_output=True, text=True, timeout=timeout, check=False
        )

    def up(self, *arguments: str) -> subprocess.Popen[str]:
        """Start `mosaic up` in the foreground, as a terminal would, and wait until it says that it is up."""
        output = (self.path.parent / "up.txt").open("a")
        process = subprocess.Popen(
            [*MOSAIC, "up", *arguments], env=self.env, stdout=output, stderr=output, text=True, start_new_session=True
        )
        output.close()
        self.started.append(process)
        wait_until("the panel", lambda: "MOSAIC is up" in self.output() or process.poll() is not None)
        return process

    def output(self) -> str:
        return (self.path.parent / "up.txt").read_text()

    def processes(self) -> dict[str, psutil.Process]:
        """Services of this home by name."""
        found = {}
        for process in psutil.process_iter():
            try:
                command = process.cmdline()
            except psutil.Error:
                continue
            if str(self.path) in command and (match := re.search(r"mosaic_services\.(\w+)", " ".join(command))):
                found[match[1]] = process
        return found

    def of_runs(self) -> list[psutil.Process]:
        """Run hosts, workers and whatever workers started."""
        runs = str(self.path / "runs")
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                mark = process.environ().get("MOSAIC_ATTEMPT_MARK", "")
                if process.status() != psutil.STATUS_ZOMBIE and runs in " ".join([*process.cmdline(), mark]):
                    found.append(process)
        return found

    def submit(self, *words: str) -> str:
        """Submit a run of the stress worker."""
        done = self.mosaic("submit", "--worker", "stress", "resources.memory_mb=64", *words, "--json")
        assert done.returncode == 0, done.stderr
        return str(json.loads(done.stdout)["runs"][0]["run"])

    def state(self, run: str) -> str:
        done = self.mosaic("show", run, "--json")
        return str(json.loads(done.stdout)["run"]["state"]) if done.returncode == 0 else ""

    def sockets(self) -> list[Path]:
        return list(self.path.rglob("*.sock"))

    def pids(self) -> dict[str, int]:
        answer = json.loads(self.mosaic("status", "--json").stdout)
        return {each["service"].split(".")[0]: each.get("pid", 0) for each in answer["services"]}

    def assert_nothing_left(self) -> None:
        wait_until("all processes to end", lambda: not self.processes())
        assert self.of_runs() == []
        assert self.sockets() == []
        assert not (self.path / "bus-address").exists()


@pytest.fixture
def place(tmp_path) -> Iterator[Place]:
    made = Place(tmp_path / "home")
    yield made
    for up in made.started:  # First, or it starts again what is killed below.
        up.kill()
        up.wait()
    for process in [*made.processes().values(), *made.of_runs()]:
        with contextlib.suppress(psutil.Error):
            process.kill()


@pytest.mark.slow
def test_up_answers_and_ctrl_c_leaves_nothing(place):
    process = place.up("--cpus", "3", "--memory-mb", "2048")
    assert "warning" not in place.output()
    assert set(place.processes()) == SERVICES
    status = json.loads(place.mosaic("status", "--json").stdout)
    assert {each["answer"] for each in status["services"]} == {"up"}
    assert status["hosts"][0]["total"] == {"cpus": 3.0, "memory_mb": 2048, "gpus": 0.0}
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=30) == 0
    assert "nothing is left running" in place.output()
    place.assert_nothing_left()


@pytest.mark.slow
@pytest.mark.parametrize("service", sorted(SERVICES))
def test_service_killed_is_started_again_and_answers(place, service):
    process = place.up()
    before = place.processes()[service].pid
    os.kill(before, signal.SIGKILL)
    wait_until("a new process", lambda: (found := place.processes().get(service)) and found.pid != before)
    wait_until("all services to answer", lambda: place.mosaic("status").returncode == 0)
    assert place.pids()[service] != before
    assert f"{service} (pid {before}) was killed by SIGKILL; restarting it in 0.2 s" in place.output()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0
    place.assert_nothing_left()


@pytest.mark.slow
def test_up_killed_takes_its_services_with_it_and_can_start_again(place):
    process = place.up("--bind", f"tcp://127.0.0.1:{free_port()}")
    process.kill()
    process.wait()
    wait_until("the services to end", lambda: not place.processes())
    stopped = place.mosaic("down")
    assert (stopped.returncode, stopped.stdout) == (0, f"nothing is running in {place.path}\n")
    # The address that the dead one left must not mislead the next.
    started = place.mosaic("up", "--detach")
    assert started.returncode == 0, started.stderr
    assert place.mosaic("status").returncode == 0
    assert place.mosaic("down").returncode == 0
    place.assert_nothing_left()


def free_port() -> int:
    """Find a port such that it and the next are free."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return int(port)


@pytest.mark.slow
def test_bind_is_found_by_clients_and_forgotten_at_the_end(place):
    address = f"tcp://127.0.0.1:{free_port()}"
    started = place.mosaic("up", "--detach", "--bind", address)
    assert started.returncode == 0, started.stderr
    assert "warning: any local user can connect to this port" in started.stdout
    assert (place.path / "bus-address").read_text() == address
    assert json.loads(place.mosaic("status", "--json").stdout)["address"] == address
    assert place.mosaic("down").returncode == 0
    place.assert_nothing_left()


@pytest.mark.slow
def test_detach_returns_when_ready_and_second_up_says_who_runs(place):
    started = place.mosaic("up", "--detach", "--json")
    assert started.returncode == 0, started.stderr
    facts = json.loads(started.stdout)
    assert facts["home"] == str(place.path)
    assert facts["cpus"] > 0
    assert place.mosaic("runs").returncode == 0
    for arguments in (["up"], ["up", "--detach"]):
        second = place.mosaic(*arguments)
        assert second.returncode == 2
        assert f"another up (pid {facts['pid']}) already runs in {place.path}" in second.stderr
        assert "Traceback" not in second.stderr
    stopped = place.mosaic("down", "--json")
    assert json.loads(stopped.stdout) == {"stopped": True, "pid": facts["pid"], "home": str(place.path)}
    # Where nothing reaps orphans (a container without an init), the number stays behind as a zombie.
    assert not psutil.pid_exists(facts["pid"]) or psutil.Process(facts["pid"]).status() == psutil.STATUS_ZOMBIE
    place.assert_nothing_left()
    assert place.mosaic("down").returncode == 0


@pytest.mark.slow
@pytest.mark.parametrize("detach", [[], ["--detach"]])
def test_service_that_cannot_run_ends_the_stack_with_its_reason(place, detach):
    """The broker's port is taken: the others must not be left behind."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        refused = place.mosaic("up", *detach, "--bind", f"tcp://127.0.0.1:{taken.getsockname()[1]}")
    assert refused.returncode in {1, 2}
    assert refused.stderr.startswith("error: broker ")
    assert "Address already in use" in refused.stderr
    place.assert_nothing_left()


@pytest.mark.slow
def test_store_of_another_version_is_told_in_one_line(place):
    store = place.path / "telemetry" / "telemetry.db"
    store.parent.mkdir(parents=True)
    with contextlib.closing(sqlite3.connect(store)) as db:
        db.execute("PRAGMA user_version=77")
    refused = place.mosaic("up")
    assert refused.returncode == 2
    assert "layout 77" in refused.stderr
    assert "Traceback" not in refused.stderr
    place.assert_nothing_left()


def test_address_that_others_could_reach_is_refused(place):
    refused = place.mosaic("up", "--bind", "tcp://0.0.0.0:5550")
    assert refused.returncode == 2
    assert "other machines" in refused.stderr
    assert not place.processes()


@pytest.mark.slow
def test_interrupt_while_starting_leaves_nothing(place):
    output = subprocess.Popen([*MOSAIC, "up"], env=place.env, stdout=subprocess.DEVNULL, start_new_session=True)
    wait_until("the broker", lambda: "broker" in place.processes())
    output.send_signal(signal.SIGINT)
    assert output.wait(timeout=30) == 0
    place.assert_nothing_left()


@pytest.mark.slow
def test_restarted_service_that_cannot_run_is_tried_again_and_the_others_go_on(place):
    process = place.up()
    before = place.processes()
    with (place.path / "scheduler.lock").open() as lock:
        before["scheduler"].kill()
        fcntl.flock(lock, fcntl.LOCK_EX)
        wait_until("it to be said", lambda: "error: scheduler cannot run: another scheduler" in place.output())
        assert "next try in" in place.output()
    wait_until("all services to answer", lambda: place.mosaic("status").returncode == 0)
    after = place.processes()
    assert {name for name in SERVICES if before[name].pid != after[name].pid} == {"scheduler"}
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0
    place.assert_nothing_left()


@pytest.mark.slow
def test_service_that_cannot_be_started_again_is_tried_until_it_can(place):
    process = place.up()
    before = place.processes()
    log = place.path / "logs" / "telemetry.log"
    log.rename(log.with_suffix(".moved"))
    log.mkdir()  # so that it cannot be opened
    before["telemetry"].kill()
    wait_until("it to be said", lambda: "error: telemetry could not be started: " in place.output())
    log.rmdir()
    wait_until("all services to answer", lambda: place.mosaic("status").returncode == 0)
    after = place.processes()
    assert {name for name in SERVICES if before[name].pid != after[name].pid} == {"telemetry"}
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 0
    place.assert_nothing_left()


@pytest.mark.slow
def test_second_interrupt_kills_a_service_that_does_not_end(place):
    process = place.up()
    os.kill(place.processes()["supervisor"].pid, signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + 8
    while process.poll() is None:
        # Repeated, because a signal that comes before the first was taken is one with it.
        process.send_signal(signal.SIGINT)
        assert time.monotonic() < deadline, place.output()
        time.sleep(0.3)
    assert "supervisor was asked to end at once: killed" in place.output()
    place.assert_nothing_left()


@pytest.mark.slow
def test_down_stops_the_runs_and_keep_runs_leaves_them_for_the_next_up(place):
    assert place.mosaic("up", "--detach").returncode == 0
    submitted = place.mosaic("submit", "--worker", "baseline", "episodes=1000000", "step_events=false", "--json")
    run = json.loads(submitted.stdout)["runs"][0]["run"]

    def state() -> str:
        return str(json.loads(place.mosaic("show", run, "--json").stdout)["run"]["state"])

    def workers() -> list[psutil.Process]:
        return [each for each in psutil.process_iter(["cmdline"]) if run in " ".join(each.info["cmdline"] or ())]

    wait_until("the run to run", lambda: state() == "running")
    kept = place.mosaic("down", "--keep-runs")
    assert "leaves its runs running" in kept.stdout
    assert workers()
    assert "leaving 1 run running" in (place.path / "logs" / "up.log").read_text()
    assert place.mosaic("up", "--detach").returncode == 0
    wait_until("the run to be taken over", lambda: state() == "running")
    assert place.mosaic("down").returncode == 0
    assert "stopping 1 run…" in (place.path / "logs" / "up.log").read_text()
    wait_until("its processes to end", lambda: not workers())
    place.assert_nothing_left()


STUBBORN = ("end=hang", "ignore_sigterm=true", "grandchildren=2")


@pytest.mark.slow
def test_host_stays_what_its_file_said_when_the_file_is_gone_and_the_supervisor_killed(place):
    described = place.path.parent / "stack.yaml"
    described.write_text("{host: big, cpus: 3, gpus: [{id: 1, name: T4, memory_mb: 16384}, {id: 2}], tags: [fast]}")
    done = place.mosaic("up", "--detach", "--config", str(described), "--cpus", "2", "--tag", "slow", "--tag", "old")
    assert done.returncode == 0, done.stderr
    for words in ("big  (2 CPUs", "1: T4 (16.0 GB); 2", "slow, old"):
        assert words in done.stdout
    described.unlink()

    def host() -> dict:
        return json.loads(place.mosaic("status", "--json").stdout)["hosts"][0]

    first = host()["instance"]
    place.processes()["supervisor"].kill()
    wait_until("another supervisor has reported", lambda: host()["instance"] != first)
    found = host()
    assert (found["total"]["cpus"], found["total"]["gpus"]) == (2.0, 2.0)
    assert [each["id"] for each in found["gpus"]] == ["1", "2"]
    assert found["tags"] == ["host:big", "gpu", "slow", "old"]
    status = place.mosaic("status").stdout
    for words in ("0 of 2 GPUs", "GPUs  1: T4 (16.0 GB); 2", "tags  slow, old"):
        assert words in status
    assert place.mosaic("down").returncode == 0
    place.assert_nothing_left()


@pytest.mark.slow
def test_runs_survive_the_death_of_up_and_the_next_adopts_them(place, stress):
    process = place.up()
    run = place.submit("end=hang")
    wait_until("the run to run", lambda: place.state(run) == "running")
    before = {each.pid for each in place.of_runs()}
    process.kill()
    process.wait()
    # The services go, the run stays; and whoever asks is told.
    wait_until("the services to end", lambda: not place.processes())
    assert {each.pid for each in place.of_runs()} == before
    stopped = place.mosaic("down")
    assert (stopped.returncode, stopped.stdout.splitlines()[0]) == (
        0,
        f"no stack is running in {place.path}, but these runs are: {run}",
    )
    started = place.mosaic("up", "--detach")
    assert started.returncode == 0, started.stderr
    wait_until("the run to be taken over", lambda: place.state(run) == "running")
    assert {each.pid for each in place.of_runs()} == before
    assert place.mosaic("down").returncode == 0
    place.assert_nothing_left()


@pytest.mark.slow
def test_up_may_follow_at_once_on_one_that_was_killed(place):
    process = place.up()
    process.kill()
    process.wait()
    started = place.mosaic("up", "--detach")
    assert started.returncode == 0, started.stderr
    assert place.mosaic("down").returncode == 0
    place.assert_nothing_left()


@pytest.mark.slow
def test_second_interrupt_kills_runs_and_what_they_started(place, stress):
    process = place.up("--cpus", "2")
    run = place.submit(*STUBBORN, "grace_s=60")
    wait_until("its children", lambda: len(place.of_runs()) == 4)
    process.send_signal(signal.SIGINT)
    wait_until("the first to be heard", lambda: "stopping 1 run… (at most 60 s" in place.output())
    wait_until("the run to be asked", (place.path / "runs" / run / "1" / "stop.json").exists)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) == 0
    assert "killed 1 run and" in place.output()
    assert "stopped; nothing is left running" in place.output()
    place.assert_nothing_left()


@pytest.mark.slow
def test_interrupt_while_the_supervisor_is_dead_ends_the_runs_politely(place, stress):
    process = place.up("--cpus", "2")
    run = place.submit("end=hang", "grace_s=20")
    wait_until("the run to run", lambda: place.state(run) == "running")
    with (place.path / "supervisor.lock").open() as lock:
        place.processes()["supervisor"].kill()
        fcntl.flock(lock, fcntl.LOCK_EX)
        wait_until("it to be said", lambda: place.output().count("error: supervisor cannot run") >= 3)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=40) == 0
    assert "the supervisor left 1 run running; stopping…" in place.output()
    assert json.loads((place.path / "runs" / run / "1" / "exit.json").read_text())["stopped"] is True
    assert "killed" not in place.output().split("stopping 1 run", 1)[1]
    place.assert_nothing_left()


@pytest.mark.slow
def test_down_with_a_queue_leaves_nothing(place, stress):
    assert place.mosaic("up", "--detach", "--cpus", "1").returncode == 0
    runs = [place.submit("end=hang", "resources.cpus=1") for _ in range(3)]
    wait_until("the first to run", lambda: "running" in [place.state(run) for run in runs])
    done = place.mosaic("down")
    assert done.returncode == 0, done.stderr
    place.assert_nothing_left()
    assert "stopped; nothing is left running" in (place.path / "logs" / "up.log").read_text()


def test_longest_grace_of_all_runs_is_waited_for(tmp_path):
    """Also of one among many, and of one that has no run host yet."""
    home = StackHome.find(tmp_path)
    (tmp_path / "active").mkdir()
    for number in range(60):
        folder = home.runs / f"run{number}" / "1"
        folder.mkdir(parents=True)
        (tmp_path / "active" / f"run{number}.1").touch()
        (folder / "placed.json").write_text(json.dumps({"name": "x", "spec": {"grace_s": number}}))
    (home.runs / "run7" / "1" / "attempt.json").write_text(json.dumps({"grace_s": 300}))
    (home.runs / "run58" / "1" / "exit.json").write_text("{}")
    active = leftovers.unended(home)
    assert len(active) == 59
    assert max(each.grace_s() for each in active) == 300
    assert {each.grace_s() for each in active if each.key.run in {"run59", "run58"}} == {59}
    assert leftovers.alive(home) == {}
    assert leftovers.kill(home) == (0, 0)


@pytest.mark.slow
def test_build_whose_supervisor_was_killed_ends_with_the_stack(place, tmp_path):
    slow = Path(shutil.copytree(STRESS, tmp_path / "stress_worker", ignore=shutil.ignore_patterns("__pycache__")))
    with (slow / "stress_worker" / "__init__.py").open("a") as source:
        source.write("\n\nimport time\n\ntime.sleep(1000)  # it never comes to describing itself\n")
    place.env["MOSAIC_WORKERS"] = str(slow)

    def describing() -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if "mosaic_worker.discover" in process.cmdline() and str(place.path) in str(process.environ()):
                    found.append(process)
        return found

    process = place.up()
    place.submit()
    (built,) = wait_until("the last step of the build", describing)
    place.processes()["supervisor"].kill()
    done = place.mosaic("down")
    assert done.returncode == 0, done.stderr
    process.wait(30)
    assert "nothing is left running" in place.output() + done.stdout
    assert not built.is_running() or built.status() == psutil.STATUS_ZOMBIE
    assert not describing()
    place.assert_nothing_left()
