"""A supervisor in trouble: full disks, unreadable files, a store or a broker that is away."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from lone_host import Host
from small_disk import mounted
from stack import STRESS, wait_until
from structlog.testing import capture_logs

from mosaic_bus.commands import Forget, Place, Stats, Stop
from mosaic_bus.errors import CommandRefusedError
from mosaic_bus.messages import AttemptPhase, RunSpec
from mosaic_services.attempt_folder import AttemptFolder, AttemptKey
from mosaic_services.home import StackHome
from mosaic_services.processes import carriers
from mosaic_services.supervisor import machine, run_hosts
from mosaic_services.supervisor.attempts import Attempts, Tracked
from mosaic_services.supervisor.bridge import Bridge
from mosaic_services.supervisor.builder import Builder, BuildFailedError
from mosaic_services.supervisor.frames import Frames
from mosaic_services.supervisor.watcher import Watcher

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator
    from pathlib import Path


@pytest.fixture
def own_host(tmp_path) -> Iterator[Host]:
    made = Host(tmp_path)
    yield made
    made.close()


@pytest.mark.slow
def test_run_that_filled_the_disk_can_be_stopped(own_host: Host):
    host = own_host
    run = host.place(end="hang")
    host.wait_running(run)
    # The stop cannot be recorded. A folder in the file's place stands for a full disk, since root may write anywhere.
    (host.home.runs / run / "1" / "stop.json.new").mkdir()
    host.ask(Stop(run=run, attempt=1, reason="cancelled by user"))
    report = host.wait_ended(run)
    assert report.exit.stopped
    assert report.exit.reason.startswith("cancelled by user")
    assert "cannot record a stop" in host.stack.log("supervisor")


@pytest.mark.slow
def test_files_of_a_worker_with_names_of_ours_disturb_no_supervisor_that_starts(own_host: Host):
    host = own_host
    runs = [host.place(end="hang", limits={"wall_s": 500}) for _ in range(2)]
    for run in runs:
        host.wait_running(run)
    (host.home.runs / runs[0] / "1" / "warnings.json").write_text("[1, 2]")
    host.stack.kill("supervisor")
    host.store.hosts.clear()
    host.start("supervisor")
    for run in runs:
        wait_until("adopted", lambda run=run: host.phase(run) == "running")
        host.ask(Stop(run=run, attempt=1, reason="enough"))
        assert host.wait_ended(run).exit.stopped


@pytest.mark.slow
def test_nothing_that_a_worker_writes_ends_the_supervisor(own_host: Host):
    host = own_host
    stopped, killed, adopted = runs = [host.place(end="hang") for _ in range(3)]
    for run in runs:
        host.wait_running(run)
    folders = {run: host.home.runs / run / "1" for run in runs}
    supervisor = host.stack.processes["supervisor"]

    (folders[stopped] / "attempt.json").write_text("[1]")
    (folders[stopped] / "stop.json").write_text("[1]")
    (folders[stopped] / "host.json").write_text("[1]")
    host.ask(Stop(run=stopped, attempt=1, reason="enough"))
    report = host.wait_ended(stopped)
    assert report.exit.stopped
    assert report.exit.reason.startswith("enough")

    (folders[killed] / "family.json").write_text("[]")
    os.kill(host.host_record(killed)["pid"], signal.SIGKILL)
    assert host.wait_ended(killed).exit.category == "infrastructure"
    assert supervisor.poll() is None

    (folders[adopted] / "host.json").write_text('{"pid": 1}')
    host.stack.kill("supervisor")
    host.store.hosts.clear()
    host.start("supervisor")
    # Its run host is unknown now, and is killed like the leftovers of one that is gone.
    assert host.wait_ended(adopted).exit.category == "infrastructure"
    assert host.stack.log("supervisor").count("invalid file in the folder of an attempt") >= 3


@pytest.mark.slow
def test_exit_record_is_not_believed_while_the_run_host_is_there(own_host: Host):
    host = own_host
    run = host.place(end="hang")
    host.wait_running(run)
    (host.home.runs / run / "1" / "exit.json").write_text('{"code": 0, "ended_at": 0}')

    def still_running() -> bool:
        host.store.hosts.clear()
        wait_until("a few reports", lambda: len(host.store.hosts) > 3)
        return host.phase(run) == "running"

    assert still_running()
    host.stack.kill("supervisor")
    host.start("supervisor")
    assert still_running()
    host.ask(Stop(run=run, attempt=1, reason="enough"))
    assert host.wait_ended(run).exit.stopped


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("attempt.json", "[1]"),
        ("attempt.json", '{"can_resume": [1]}'),
        ("host.json", '{"pid": 1}'),
        ("host.json", '{"pid": -1, "start_time": 1, "started_at": 1.0}'),
        ("host.json", '{"pid": 1, "start_time": 1, "started_at": NaN}'),
        ("stop.json", "[1]"),
        ("exit.json", "["),
        ("exit.json", '{"code": "none"}'),
        ("exit.json", "[" * 100_000),
        ("frames.json", "7"),
    ],
)
def test_file_that_is_not_as_we_write_it_counts_as_not_there_and_is_said_once(tmp_path, name, content):
    folder = AttemptFolder(StackHome.find(tmp_path), AttemptKey("01RUN", 1))
    folder.path.mkdir(parents=True)
    (folder.path / name).write_text(content)
    with capture_logs() as logs:
        for _ in range(2):
            assert (folder.can_resume(), folder.host(), folder.stop_reason()) == (False, None, None)
            assert (folder.exit(), folder.frames()) == (None, [])
    assert [each["file"] for each in logs] == [str(folder.path / name)]


@pytest.mark.parametrize(
    "content", ["[]", "{", '{"processes": 5}', '{"processes": [5]}', '{"processes": [{"pid": []}]}']
)
def test_family_that_no_run_host_has_noted_is_nobodys_and_said_once(tmp_path, content):
    (tmp_path / "family.json").write_text(content)
    with capture_logs() as logs:
        for _ in range(2):
            assert carriers({str(tmp_path)}) == set()
    assert len(logs) <= 1


def test_folder_that_was_removed_is_not_tracked_any_more(tmp_path):
    home = StackHome.find(tmp_path)
    home.create()
    folder = AttemptFolder(home, AttemptKey("01RUN", 1))
    folder.place(Place(run=folder.key.run, attempt=1, run_name="n", spec=RunSpec(worker="x")))
    shutil.rmtree(folder.path)
    folder.mark("forgotten")
    assert AttemptFolder.active(home) == []


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of 2 MiB for the runs."""
    yield from mounted(tmp_path / "runs", "2m")


def fill(disk: Path, left: int) -> None:
    """Fill a file system up to a number of free bytes."""
    with (disk / "filler").open("wb") as file:
        file.write(b"x" * (shutil.disk_usage(disk).free - left))


def test_run_is_refused_for_the_moment_by_a_disk_that_is_nearly_full_and_fails_clearly_if_it_fills_up(
    tmp_path, small_disk
):
    late, never = AttemptKey("01LATE", 1), AttemptKey("01NEVER", 1)

    async def ensure(*_: object) -> SimpleNamespace:
        fill(small_disk, 0)
        return SimpleNamespace(environ=lambda *_: {}, command=lambda *_: ["x"], description=None)

    async def story() -> Attempts:
        attempts, _ = attempts_in(tmp_path, lambda task, _: tasks.append(task))
        builder = attempts._preparation._builder
        builder.get, builder.ensure = (lambda *_: None), ensure
        placed = Place(run=late.run, attempt=1, run_name="n", spec=RunSpec(worker="x"))
        await attempts.place(placed)
        fill(small_disk, 100_000)
        with pytest.raises(CommandRefusedError, match="No space left") as refused:
            await attempts.place(placed.model_copy(update={"run": never.run}))
        assert refused.value.code == "host_unavailable"
        await tasks.pop()
        return attempts

    tasks: list[Coroutine[object, object, None]] = []
    attempts = asyncio.run(story())
    assert list(attempts.tracked) == [late]
    assert attempts.machine.attempts[late].exit.reason.startswith("disk full: cannot write")


@pytest.mark.slow
def test_attempt_of_which_the_scheduler_knows_the_end_is_reported_no_more_even_if_it_is_not_stored(own_host: Host):
    host = own_host
    host.store.away = True
    run = host.place(events=3)
    host.wait_ended(run)
    host.ask(Forget(run=run, attempt=1))
    wait_until("no more reports", lambda: host.store.attempt(run) is None)
    assert host.stack.bus.request(host.stack.service_name("supervisor"), Stats()).counters["attempts"] == 1
    host.store.away = False
    assert len(host.wait_stored(run)) == 5
    wait_until("released", lambda: not list((host.home.path / "active").iterdir()))


@pytest.mark.slow
def test_broker_that_is_away_for_long_while_a_supervisor_starts_makes_it_repeat_nothing(own_host: Host):
    host = own_host
    run = host.place(events=2000, end="hang")
    host.wait_running(run)
    wait_until("stored", lambda: len(host.store.lines.get((run, 1, "journal"), [])) == 2001)
    host.stack.kill("supervisor")
    host.stack.kill("broker")
    host.stack.start("supervisor")
    began = time.monotonic()
    wait_until("longer than a store that says nothing counts as alive", lambda: time.monotonic() - began > 4)
    host.store.hosts.clear()
    host.start("broker")
    wait_until("adopted", lambda: host.phase(run) == "running")
    host.ask(Stop(run=run, attempt=1, reason="enough"))
    host.wait_ended(run)
    host.wait_stored(run)
    seen = host.store.live[run, 1, "journal"]
    assert len(seen) == len(set(seen)), "live readers got lines twice"


def attempts_in(folder, spawn) -> tuple[Attempts, Bridge]:
    """Return the attempts of a supervisor without bus and builds."""
    home = StackHome.find(folder)
    home.create()
    bridge = Bridge("host", lambda *_: True, time.monotonic())
    frames = Frames(folder / "shm", "host", lambda *_: True)
    builder = SimpleNamespace(progress=lambda *_: None)
    return Attempts(home, builder, SimpleNamespace(), bridge, frames, frozenset(), spawn, 16 * 2**20), bridge


@pytest.mark.parametrize("phase", ["preparing", "starting", "stopping"])
def test_line_for_a_worker_that_has_not_started_is_refused_as_that(tmp_path, phase):
    attempts, _ = attempts_in(tmp_path, None)
    key = AttemptKey("01RUN", 1)
    placed = Place(run=key.run, attempt=1, run_name="n", spec=RunSpec(worker="x", interactive=True))
    folder = AttemptFolder(attempts.home, key)
    folder.place(placed)
    attempts.tracked[key] = Tracked(folder, placed)
    attempts.machine.attempts[key] = machine.Attempt(phase=AttemptPhase(phase))
    with pytest.raises(CommandRefusedError) as refused:
        attempts.tell(key, "{}")
    assert refused.value.code == "not_started"
    folder.journal.write_text("{}")
    with pytest.raises(CommandRefusedError) as refused:
        attempts.tell(key, "{}")
    assert refused.value.code == "already_ended"


def test_much_that_happens_does_not_make_the_watcher_look_all_the_time(tmp_path, monkeypatch):
    """The run host could not be started, and the sweep after it takes a while."""
    monkeypatch.setattr(run_hosts, "sweep", lambda _: time.sleep(0.5) or 0)
    looks = 0

    async def story() -> float:
        tasks = []
        attempts, bridge = attempts_in(tmp_path, lambda task, _: tasks.append(asyncio.create_task(task)))
        key = AttemptKey("01RUN", 1)
        placed = Place(run=key.run, attempt=1, run_name="n", spec=RunSpec(worker="x"))
        folder = AttemptFolder(attempts.home, key)
        folder.place(placed)
        attempts.tracked[key] = Tracked(folder, placed)
        attempts.machine.attempts[key] = machine.Attempt(phase=AttemptPhase.STARTING)
        reaped = attempts.reap

        def reap():  # Called at the start of every look.
            nonlocal looks
            looks += 1
            reaped()

        monkeypatch.setattr(attempts, "reap", reap)
        watching = asyncio.create_task(Watcher(attempts, bridge).run())
        began = asyncio.get_running_loop().time()
        while not attempts.is_ended(key):
            attempts.stirred.set()
            await asyncio.sleep(0)
            for task in (watching, *tasks):
                if task.done():
                    task.result()  # Raise what ended it; otherwise this loop would never end.
        watching.cancel()
        await asyncio.gather(*tasks)
        return asyncio.get_running_loop().time() - began

    took = asyncio.run(story())
    assert 3 < looks < took / 0.02 + 2


def test_environment_that_was_changed_while_it_was_built_is_built_again_but_not_for_ever(tmp_path, monkeypatch):
    found = [SimpleNamespace(status=each, fingerprint="x") for each in ("available", "available", "installed")]
    builds = []

    async def build(_self, key, _fingerprint):
        builds.append(key)

    monkeypatch.setattr(Builder, "_build", build)
    monkeypatch.setattr(Builder, "get", lambda *_: found.pop(0) if len(found) > 1 else found[0])
    builder = Builder(StackHome.find(tmp_path), "host", lambda _: None)
    assert asyncio.run(builder.ensure("w", "default")).status == "installed"
    assert len(builds) == 2
    found[:] = [SimpleNamespace(status="available", fingerprint="x")]
    with pytest.raises(BuildFailedError, match="was changed each time"):
        asyncio.run(builder.ensure("w", "default"))


@pytest.mark.slow
def test_worker_whose_own_code_is_broken_is_at_fault_and_not_the_host(tmp_path):
    worker = tmp_path / "stress_worker"
    shutil.copytree(STRESS, worker, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    with (worker / "stress_worker" / "__init__.py").open("a") as code:
        code.write("def (\n")
    host = Host(tmp_path, MOSAIC_WORKERS=str(worker))
    try:
        report = host.wait_ended(host.place(end="hang"))
        assert (report.exit.category, report.exit.phase) == ("application", "preparing")
        assert "SyntaxError: invalid syntax" in report.exit.reason
    finally:
        host.close()
