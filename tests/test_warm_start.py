"""Runs that are forked from a template, through a whole stack of real services."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from stack import HOST, STRESS, Stack, wait_until

from mosaic_bus import topics
from mosaic_bus.commands import Stats
from mosaic_bus.messages import AttemptReport, HostState
from mosaic_services import processes
from mosaic_services.environments import build, read_recipe, recipe_for
from mosaic_services.home import StackHome
from mosaic_services.stack import leftovers

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mosaic_services.environments import Environment


@pytest.fixture(scope="module")
def warm_stack(tmp_path_factory) -> Iterator[Stack]:
    """A stack whose template is ready, for tests that leave it so."""
    build(read_recipe(STRESS), "warm", lambda _step, _percent: None)
    with Stack(tmp_path_factory.mktemp("warm") / "home") as running:
        warm_up(running)
        yield running
    assert running.leftovers() == []


@pytest.fixture
def own_stack(tmp_path) -> Iterator[Stack]:
    build(read_recipe(STRESS), "warm", lambda _step, _percent: None)
    with Stack(tmp_path / "home") as running:
        warm_up(running)
        yield running
    assert running.leftovers() == []


def counter(stack: Stack, name: str) -> float:
    return stack.bus.request(f"supervisor.{HOST}", Stats()).counters[name]


def submit(stack: Stack, **config: Any) -> str:
    return stack.submit(profile="warm", config=config, grace_s=5)


def folder(stack: Stack, run: str) -> Path:
    return stack.home.runs / run / "1"


def host_of(stack: Stack, run: str) -> dict[str, Any]:
    wait_until("the run host is up", (folder(stack, run) / "host.json").exists)
    found: dict[str, Any] = json.loads((folder(stack, run) / "host.json").read_bytes())
    return found


def worker_of(stack: Stack, run: str) -> psutil.Process:
    (worker,) = psutil.Process(host_of(stack, run)["pid"]).children()
    return worker


def template_of(stack: Stack) -> psutil.Process | None:
    supervisor = psutil.Process(stack.processes["supervisor"].pid)
    living = [each for each in supervisor.children() if is_running(each)]
    found = [each for each in living if "mosaic_worker.template" in each.cmdline()]
    return found[0] if found else None


def warm_up(stack: Stack) -> None:
    """Run until a run was forked."""

    def was_warm() -> bool:
        run = submit(stack)
        assert stack.wait_final(run).state == "succeeded"
        return bool(host_of(stack, run)["warm"])

    wait_until("a run is forked", was_warm)


def start(stack: Stack, **config: Any) -> str:
    """A run that is forked, and has begun."""
    run = submit(stack, **config)
    stack.wait_state(run, "running")
    assert host_of(stack, run)["warm"]
    return run


def is_running(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


@pytest.mark.slow
def test_warm_run_is_like_any_other_and_says_that_it_was_forked(warm_stack: Stack):
    stack = warm_stack
    before = counter(stack, "warm_starts"), counter(stack, "cold_starts")
    run = start(stack, events=1000, log_lines=10, end="hang")
    said = HostState.model_validate(next(iter(stack.bus.listen(topics.host_state(HOST)))).payload)
    reports: list[AttemptReport] = [each for each in said.attempts if each.run == run]
    assert [each.warm for each in reports] == [True]
    assert (counter(stack, "warm_starts"), counter(stack, "cold_starts")) == (before[0] + 1, before[1])
    assert counter(stack, "templates") == 1
    worker = worker_of(stack, run)
    assert worker.cmdline()[1:4] == ["-m", "stress_worker.cli", "--config"]
    assert worker.environ()[processes.MARK] == str(folder(stack, run))
    assert os.getsid(worker.pid) == worker.pid
    assert (worker.cwd(), worker.nice()) == (str(folder(stack, run)), 10)
    # What `mosaic down` sees when no service can be asked.
    assert leftovers.alive(stack.home)[run] == host_of(stack, run)["pid"]
    assert worker.pid in leftovers.strays(stack.home)
    stack.cancel(run)
    assert stack.wait_final(run).state == "cancelled"
    stack.wait_stored(run)
    assert stack.assert_stored_exactly_once(run) == 1002


@pytest.mark.slow
def test_cancelled_warm_run_leaves_no_grandchild(warm_stack: Stack):
    stack = warm_stack
    run = start(stack, grandchildren=2, end="hang", ignore_sigterm=True)
    wait_until("grandchildren", lambda: len(worker_of(stack, run).children()) == 2)
    family = psutil.Process(host_of(stack, run)["pid"]).children(recursive=True)
    stack.cancel(run)
    assert stack.wait_final(run).state == "cancelled"
    assert not [each for each in family if is_running(each)]


@pytest.mark.slow
def test_warm_run_that_fails_says_why_as_any_other(warm_stack: Stack):
    run = submit(warm_stack, end="crash")
    state = warm_stack.wait_final(run)
    assert host_of(warm_stack, run)["warm"]
    assert (state.state, state.category, state.exit_code) == ("failed", "application", 1)
    assert "loss is NaN at step 40960" in state.reason


@pytest.mark.slow
def test_killed_worker_of_a_warm_run_is_a_failure_of_the_infrastructure(warm_stack: Stack):
    run = start(warm_stack, end="hang", grandchildren=1)
    worker_of(warm_stack, run).kill()
    state = warm_stack.wait_final(run)
    assert (state.state, state.category) == ("failed", "infrastructure")


@pytest.mark.slow
def test_killed_run_host_of_a_warm_run_leaves_no_process(warm_stack: Stack):
    stack = warm_stack
    run = start(stack, end="hang", grandchildren=2)
    wait_until("grandchildren", lambda: len(worker_of(stack, run).children()) == 2)
    host = psutil.Process(host_of(stack, run)["pid"])
    family = host.children(recursive=True)
    assert len(family) == 3
    host.kill()
    state = stack.wait_final(run)
    assert (state.state, state.category) == ("failed", "infrastructure")
    assert not [each for each in family if is_running(each)]
    assert template_of(stack) is not None


@pytest.mark.slow
def test_killed_template_takes_no_run_along_and_is_replaced(own_stack: Stack):
    stack = own_stack
    run = start(stack, end="hang")
    template = template_of(stack)
    assert template is not None
    template.kill()
    wait_until("it is gone", lambda: not is_running(template))
    following = submit(stack)
    assert stack.wait_final(following).state == "succeeded"
    assert not host_of(stack, following)["warm"]
    assert stack.state(run).state == "running"
    warm_up(stack)
    stack.cancel(run)
    assert stack.wait_final(run).state == "cancelled"


@pytest.mark.slow
def test_template_that_is_stopped_holds_up_no_run_and_starts_none_twice(own_stack: Stack):
    stack = own_stack
    template = template_of(stack)
    assert template is not None
    template.send_signal(signal.SIGSTOP)
    runs = [submit(stack, events=3) for _ in range(3)]
    for run in runs:
        assert stack.wait_final(run).state == "succeeded"
        assert not host_of(stack, run)["warm"]
        assert stack.journal(run).read_text().count("run_started") == 1
    assert not is_running(template)
    assert "did not answer" in stack.log("supervisor")


@pytest.mark.slow
def test_killed_supervisor_takes_the_template_along_and_the_next_adopts_the_warm_run(own_stack: Stack):
    stack = own_stack
    run = start(stack, events=50, end="hang")
    template, worker = template_of(stack), worker_of(stack, run)
    assert template is not None
    stack.kill("supervisor")
    wait_until("the template is gone", lambda: not is_running(template))
    assert is_running(worker)
    stack.start("supervisor")
    stack.wait_for("supervisor")
    assert counter(stack, "templates") == 0
    stack.cancel(run)
    assert stack.wait_final(run).state == "cancelled"
    stack.wait_stored(run)
    assert stack.assert_stored_exactly_once(run) == 52
    warm_up(stack)


@pytest.mark.slow
def test_changed_worker_and_broken_template(tmp_path):
    """A new template for new code; a template that cannot be is told in the log, and runs are spawned."""
    copy = tmp_path / "stress_worker"
    shutil.copytree(STRESS, copy)
    profiles = (copy / "profiles.toml").read_text()
    with Stack(tmp_path / "home", environ={"MOSAIC_WORKERS": str(copy)}) as stack:
        warm_up(stack)
        old = template_of(stack)
        assert old is not None
        code = (copy / "stress_worker" / "cli.py").read_text()
        (copy / "stress_worker" / "cli.py").write_text(code.replace("loss is NaN", "loss is infinite"))
        wait_until("the old template is gone", lambda: not is_running(old))
        warm_up(stack)
        run = submit(stack, end="crash")
        assert "loss is infinite" in stack.wait_final(run).reason
        assert host_of(stack, run)["warm"]
        (copy / "profiles.toml").write_text(profiles.replace('"numpy.random"', '"no_such_module"'))
        runs = [submit(stack) for _ in range(2)]
        wait_until("the reason is in the log", lambda: "cannot import no_such_module" in stack.log("supervisor"))
        runs.append(submit(stack))
        for run in runs:
            assert stack.wait_final(run).state == "succeeded"
            assert not host_of(stack, run)["warm"]
        assert template_of(stack) is None
    assert stack.leftovers() == []


PPO = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 2048, "seed": 3}
TIMES = {"charts/SPS"}


def events_of(stack: Stack, run: str) -> list[dict[str, Any]]:
    """What a run wrote, less what differs from run to run."""
    written = [json.loads(line) for line in stack.journal(run).read_text().splitlines()]
    kept = ("event", "episode", "return", "length", "step", "values", "path", "seed")
    found = [{name: each[name] for name in kept if name in each} for each in written if each["event"] != "heartbeat"]
    for each in found:
        each["values"] = {name: value for name, value in each.get("values", {}).items() if name not in TIMES}
    return found


def started_after(stack: Stack, run: str) -> float:
    """Seconds between submission and the first event."""
    (first, *_) = stack.journal(run).read_text().splitlines()
    return float(json.loads(first)["ts"]) - stack.state(run).submitted_at


def build_shipped(worker: str, tmp_path: Path) -> Environment:
    return build(recipe_for(worker, StackHome.find(tmp_path / "home")), "default", lambda _step, _percent: None)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("worker", "config", "faster"),
    [("cleanrl", PPO, 5), ("baseline", {"episodes": 50, "seed": 3, "step_events": False}, 1.5)],
)
def test_shipped_worker_starts_warm_and_computes_the_same(tmp_path, worker, config, faster):
    """The second run is forked, starts in a fraction of the time, and gives the same numbers, bit for bit."""
    build_shipped(worker, tmp_path)

    def finish() -> str:
        run = stack.submit(worker=worker, config=config, resources={"cpus": 1, "memory_mb": 512})
        assert stack.wait_final(run).state == "succeeded", stack.state(run).reason
        return run

    with Stack(tmp_path / "home") as stack:
        first = finish()
        assert not host_of(stack, first)["warm"]
        wait_until("the template is ready", lambda: "template ready" in stack.log("supervisor"))
        second, third = finish(), finish()
        assert [host_of(stack, run)["warm"] for run in (second, third)] == [True, True]
        assert counter(stack, "warm_starts") == 2
        assert events_of(stack, second) == events_of(stack, third) == events_of(stack, first)
        assert min(started_after(stack, run) for run in (second, third)) < started_after(stack, first) / faster
        template = template_of(stack)
        assert template is not None
        template.kill()
        assert events_of(stack, finish()) == events_of(stack, first)
    assert stack.leftovers() == []


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_unseeded_processes_of_one_template_draw_different_numbers_with_torch(tmp_path):
    environment = build_shipped("cleanrl", tmp_path)
    code = """
import os, sys, torch
from mosaic_worker.template import _reseed
for _ in range(2):
    if os.fork() == 0:
        _reseed(sys.modules)
        print(torch.rand(1).item(), flush=True)
        os._exit(0)
    os.wait()
"""
    command = [environment.python, "-c", code]
    done = subprocess.run(command, env=environment.environ(), capture_output=True, text=True, check=True, timeout=300)
    first, second = done.stdout.split()
    assert first != second
