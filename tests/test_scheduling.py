"""GPUs, order, retries, limits and references in a stack of real processes. The GPUs are only declared."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest
from stack import Stack, wait_until

from mosaic_bus import CommandRefusedError
from mosaic_bus.commands import (
    CancelGroup,
    Drain,
    Groups,
    Hosts,
    NewRun,
    PauseQueue,
    Rerun,
    Runs,
    Series,
    SubmitMany,
    Why,
)
from mosaic_bus.messages import RunSpec

GPUS = 4


@pytest.fixture(scope="module")
def stack(tmp_path_factory, workers):
    """One stack for all tests; each leaves it idle."""
    with Stack(tmp_path_factory.mktemp("scheduling") / "home", cpus=16, gpus=GPUS) as stack:
        yield stack
    assert stack.leftovers() == []


def attempts_of(stack: Stack, run: str) -> list[dict]:
    return stack.show(run).attempts


def worker_pid(stack: Stack, run: str) -> int:
    """The process of a run's first attempt."""
    pid = json.loads((stack.home.runs / run / "1" / "host.json").read_bytes())["pid"]
    return wait_until("the worker is there", lambda: psutil.Process(pid).children())[0].pid


def worker_environ(stack: Stack, run: str) -> dict[str, str]:
    """The environment of a running worker, as the kernel knows it."""
    pairs = Path(f"/proc/{worker_pid(stack, run)}/environ").read_text().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def gpu_time(stack: Stack, runs: list[str]) -> list[tuple[str, float, float, float]]:
    """(GPU, start, end, share) of each attempt, as the hosts recorded it."""
    held = []
    for run in runs:
        for attempt in attempts_of(stack, run):
            ended = attempt["exit"]
            if ended and ended["started_at"]:
                held += [(gpu, ended["started_at"], ended["ended_at"], share) for gpu, share in attempt["gpus"].items()]
    return held


def assert_never_more_than_one(held: list[tuple[str, float, float, float]]) -> None:
    for gpu in {each[0] for each in held}:
        spans = [each for each in held if each[0] == gpu]
        for _, start, _, _ in spans:
            assert sum(share for _, begin, end, share in spans if begin <= start < end) <= 1, (gpu, spans)


def some_run_or_all_are_done(stack, runs: list[str]) -> bool:
    states = {each.state for each in stack.bus.request("scheduler", Runs(runs=runs)).runs}
    return "running" in states or states == {"succeeded"}


@pytest.mark.slow
def test_ten_runs_on_four_gpus_never_overlap_although_scheduler_and_supervisor_are_killed(stack):
    wants = [1, 2, 0.5, 0.5, 1, 2, 0.5, 1, 0.5, 2]
    runs = [
        stack.submit(
            resources={"cpus": 0.5, "memory_mb": 64, "gpus": wanted},
            config={"events": 60, "rate": 30},
            name=f"gpu{wanted}-{number}",
        )
        for number, wanted in enumerate(wants)
    ]
    stack.wait_state(runs[0], "running")
    visible = worker_environ(stack, runs[0])["CUDA_VISIBLE_DEVICES"]
    assert visible.split(",") == list(attempts_of(stack, runs[0])[0]["gpus"])
    for service in ("scheduler", "supervisor", "scheduler"):
        stack.kill_and_restart(service)
        stack.wait_for(service)
        wait_until("runs are seen again", lambda: some_run_or_all_are_done(stack, runs))
    states = [stack.wait_final(run) for run in runs]
    assert {each.state for each in states} == {"succeeded"}
    held = gpu_time(stack, runs)
    assert sum(each[3] for each in held) == sum(wants), "every run had what it asked for"
    assert_never_more_than_one(held)
    last = stack.submit(resources={"cpus": 0.5, "memory_mb": 64, "gpus": GPUS}, config={"events": 1})
    assert stack.wait_final(last).state == "succeeded", "no GPU has leaked"


@pytest.mark.slow
def test_a_run_that_failed_goes_on_from_its_checkpoint_and_says_why(stack):
    run = stack.submit(
        config={"events": 100, "checkpoint_every": 20, "fail_at_step": 50},
        retries={"max": 2, "on": ["application"], "delay_s": 0.5},
    )
    assert stack.wait_final(run).state == "succeeded"
    first, second = attempts_of(stack, run)
    assert (first["outcome"], second["outcome"]) == ("failed", "succeeded")
    assert second["resume"]["step"] == 40
    journal = [json.loads(line) for line in stack.journal(run, 2).read_text().splitlines()]
    steps = [event["step"] for event in journal if event["event"] == "step"]
    assert steps == list(range(40, 100))
    stack.wait_stored(run)
    curve = stack.bus.request("telemetry", Series(runs=[run], metrics=["reward"])).only
    assert curve.steps == list(range(100)), "the ten steps that were lost and played again are in it once"
    why = stack.bus.request("scheduler", Why(run=run))
    assert any("attempt 1 on testhost failed" in fact and "step 40" in fact for fact in why.facts), why.facts
    assert any("resumes from its checkpoint of step 40" in each.reason for each in why.decisions)


def result_of(stack: Stack, run: str) -> dict:
    """The summary in a run's last event."""
    return json.loads(stack.journal(run).read_text().splitlines()[-1])["summary"]


@pytest.mark.slow
def test_a_run_reads_a_checkpoint_of_another_by_reference(stack):
    first = stack.submit(name="teacher", config={"events": 100, "rate": 100, "checkpoint_every": 20})
    early = stack.submit(config={"models": ["run:teacher@40"]})
    last = stack.submit(config={"models": ["run:teacher@last", f"run:{first}@60"]}, after=["teacher"])
    stack.kill_and_restart("scheduler")
    stack.wait_for("scheduler")
    assert {stack.wait_final(run).state for run in (first, early, last)} == {"succeeded"}
    assert result_of(stack, early)["models"] == [40]
    assert result_of(stack, last)["models"] == [100, 60]
    assert [each["step"] for each in attempts_of(stack, last)[0]["inputs"]] == [100, 60]
    assert "resolved" in [each.event for each in stack.bus.request("scheduler", Why(run=last)).decisions]

    never = stack.wait_final(stack.submit(config={"models": ["run:teacher@30"]}))
    assert (never.state, never.category, never.attempt) == ("failed", "configuration", 0)
    assert "step 20, step 40" in never.reason
    (stack.home.runs / first / "1" / "checkpoints" / "80.json").unlink()
    gone = stack.wait_final(stack.submit(config={"models": ["run:teacher@80"]}))
    assert (gone.state, gone.category) == ("failed", "configuration")
    assert "checkpoints/80.json" in gone.reason
    for reference, code in (("run:nobody", "unknown_run"), ("run:teacher@newest", "invalid_config")):
        with pytest.raises(CommandRefusedError) as refused:
            stack.submit(config={"models": [reference]})
        assert refused.value.code == code


@pytest.mark.slow
def test_a_run_over_its_memory_limit_is_stopped_and_not_tried_again(stack):
    run = stack.submit(
        config={"allocate_mb": 400, "end": "hang"},
        limits={"memory_mb": 200},
        retries={"max": 3, "on": ["application"]},
        grace_s=1,
    )
    state = stack.wait_final(run)
    assert (state.state, state.category, state.attempt) == ("failed", "application", 1)
    assert "memory limit" in state.reason
    why = stack.bus.request("scheduler", Why(run=run))
    assert "not retried: the same memory limit would stop it again" in why.facts


@pytest.mark.slow
def test_a_run_waits_for_another_and_what_is_queued_says_who_holds_what_it_needs(stack):
    first = stack.submit(config={"end": "hang"}, resources={"cpus": 16, "memory_mb": 64}, name="hog", grace_s=1)
    stack.wait_state(first, "running")
    second = stack.submit(name="later", after=["hog"])
    third = stack.submit(name="crowded", priority=3)
    why = stack.bus.request("scheduler", Why(run=third))
    assert why.position == 1
    assert "waits for 0.5 cpus: testhost has 0 of 16 free" in why.answer
    assert any("hog" in fact and "holds 16 cpus" in fact for fact in why.facts)
    assert f"waits for hog ({first[-6:]}, running) to succeed" in stack.state(second).reason
    stack.cancel(first)
    assert stack.wait_final(second).state == "cancelled"
    assert stack.wait_final(third).state == "succeeded"


@pytest.mark.slow
def test_a_group_is_submitted_cancelled_and_run_again(stack):
    new = [
        NewRun(spec=RunSpec(worker="stress", group="sweep-1", config=config, resources={"cpus": 0.5, "memory_mb": 64}))
        for config in ({"events": 5}, {"end": "crash"}, {"end": "crash"})
    ]
    taken = stack.bus.request("scheduler", SubmitMany(runs=new)).runs
    for each in taken:
        stack.wait_final(each.run)
    (group,) = stack.bus.request("scheduler", Groups(group="sweep")).groups
    assert (group.total, group.counts) == (3, {"succeeded": 1, "failed": 2})
    again = stack.bus.request("scheduler", Rerun(group="sweep-1")).runs
    assert len(again) == 2
    for each in again:
        assert stack.wait_final(each.run).state == "failed"
    (group,) = stack.bus.request("scheduler", Groups(group="sweep-1")).groups
    assert group.total == 3
    with pytest.raises(CommandRefusedError, match="all 5 runs of sweep-1 have ended"):
        stack.bus.request("scheduler", CancelGroup(group="sweep-1"))


@pytest.mark.slow
def test_pause_and_drain_survive_a_killed_scheduler(stack):
    stack.bus.request("scheduler", PauseQueue(paused=True, reason="maintenance"))
    stack.bus.request("scheduler", Drain(host="testhost", drained=True, reason="new disk"))
    run = stack.submit(config={"events": 1})
    stack.kill_and_restart("scheduler")
    stack.wait_for("scheduler")
    wait_until("the host has reported", lambda: stack.bus.request("scheduler", Hosts()).hosts)
    known = stack.bus.request("scheduler", Hosts())
    assert (known.paused, known.drained) == ("maintenance", {"testhost": "new disk"})
    stack.bus.request("scheduler", PauseQueue(paused=False))
    wait_until("it is told", lambda: stack.state(run).reason == "testhost is drained (new disk)")
    stack.bus.request("scheduler", Drain(host="testhost", drained=False))
    assert stack.wait_final(run).state == "succeeded"


@pytest.mark.slow
def test_a_worker_killed_is_tried_again_on_the_same_host(stack):
    run = stack.submit(config={"events": 200, "rate": 50}, retries={"max": 1, "delay_s": 0})
    stack.wait_state(run, "running")
    os.kill(worker_pid(stack, run), signal.SIGKILL)
    state = stack.wait_final(run)
    assert (state.state, state.attempt) == ("succeeded", 2)
    stack.wait_stored(run)
    lines = stack.stored_lines(run, attempt=2)
    assert len(lines) >= 202


@pytest.mark.slow
def test_a_configuration_that_fails_only_on_the_host_ends_once_with_its_reason(stack):
    run = stack.submit(config={"exit_code": 2}, retries={"max": 5, "on": ["application", 2]})
    state = stack.wait_final(run)
    assert (state.state, state.category, state.attempt) == ("failed", "configuration", 1)
    started = time.time()
    why = stack.bus.request("scheduler", Why(run=run))
    assert "not retried: the same configuration would be refused again" in why.facts
    assert why.run.ended_at < started
