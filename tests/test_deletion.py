"""Deleting runs in a stack of real processes: files, events and decisions go; what is active or needed stays."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys

import pytest
from mosaic_cli import Cli
from stack import Stack, wait_until

from mosaic_bus import CommandRefusedError, NoAnswerError, topics
from mosaic_bus.commands import (
    Check,
    Delete,
    DeleteResult,
    Events,
    Files,
    ReadFile,
    Runs,
    Show,
    ShowExperiment,
    Summaries,
)
from mosaic_bus.messages import ExperimentState, ExperimentStateName, Resources, RunSpec, RunStateName
from mosaic_services.cli.main import main
from mosaic_services.experiments.folder import ExperimentFolder
from mosaic_services.operator.progress import Progress
from mosaic_services.scheduler.deletion import delete
from mosaic_services.scheduler.model import Attempt, Run

HOST = Stack.service_name("supervisor")


@pytest.fixture(scope="module")
def stack(tmp_path_factory, workers):
    with Stack(tmp_path_factory.mktemp("deletion") / "home", cpus=8) as stack:
        yield stack
    assert stack.leftovers() == []


def finished(stack: Stack, **spec) -> str:
    run = stack.submit(config={"events": 50}, **spec)
    assert stack.wait_final(run).state == "succeeded"
    stack.wait_stored(run)
    # The note goes a moment after the last line is stored.
    wait_until("nothing is left to report", lambda: not list((stack.home.path / "active").glob(f"{run}.*")))
    return run


def refused(stack: Stack, service: str, command) -> str:
    with pytest.raises(CommandRefusedError) as refusal:
        stack.bus.request(service, command, timeout=20)
    return str(refusal.value.code)


def test_deleted_run_is_gone_everywhere_even_after_a_restart(stack):
    run, other = finished(stack, name="goes"), finished(stack, name="stays")
    folder = stack.home.runs / run
    would = stack.bus.request("scheduler", Delete(runs=["goes"], dry_run=True), timeout=20)
    assert [each.run for each in would.deleted] == [run]
    assert would.deleted[0].bytes > 0
    assert folder.exists()
    with stack.bus.follow(hosts=False) as live:
        assert run in live.runs
        done = stack.bus.request("scheduler", Delete(runs=[run]), timeout=20)
        assert ([each.run for each in done.deleted], done.kept) == ([run], [])
        wait_until("live views have heard of it", lambda: run not in live.runs)
        assert other in live.runs
    assert not folder.exists()
    assert refused(stack, "scheduler", Show(run=run)) == "unknown_run"
    assert refused(stack, "telemetry", Events(run=run)) == "unknown_run"
    for service in ("scheduler", "telemetry"):
        stack.kill_and_restart(service)
    wait_until("the scheduler answers", lambda: stack.bus.request("scheduler", Runs(), timeout=20))
    assert refused(stack, "scheduler", Show(run=run)) == "unknown_run"
    assert stack.show(other).run.state == "succeeded"
    assert stack.bus.request("telemetry", Summaries(runs=[run, other]), timeout=20).summaries[0].run == other


def test_active_and_needed_runs_are_kept(stack):
    going = stack.submit(name="going", config={"events": 10**9, "rate": 100.0})
    stack.wait_state(going, "running")
    assert refused(stack, "scheduler", Delete(runs=["going"])) == "not_final"
    needed = finished(stack, name="needed")
    stack.submit(name="needs", after=["needed", "going"])
    everything = stack.bus.request("scheduler", Delete(older_than_s=0, dry_run=True), timeout=20)
    assert needed not in {each.run for each in everything.deleted}
    assert {each.run: each.reason.partition(" ")[0] for each in everything.kept} == {needed: "needs"}
    assert going not in {each.run for each in everything.deleted}
    assert stack.bus.request("scheduler", Delete(older_than_s=3600.0), timeout=20).deleted == []
    assert refused(stack, "scheduler", Delete()) == "invalid_arguments"
    assert refused(stack, "scheduler", Delete(older_than_s=0, states=["running"])) == "invalid_arguments"
    stack.cancel(going)


def test_prune_and_delete_on_the_command_line(stack, capsys):
    run = finished(stack, name="old", group="pruned")
    home = ["--home", str(stack.home.path)]
    # In a process of its own: the signal handlers of the command line belong to the main thread.
    words = [sys.executable, "-m", "mosaic_services.cli", "prune", "--older-than", "0s", "--group", "pruned", "--json"]
    dry = subprocess.run([*words, "--dry-run", *home], capture_output=True, text=True, check=True, timeout=60)
    assert [each["run"] for each in json.loads(dry.stdout)["deleted"]] == [run]
    assert stack.show(run).run.state == "succeeded"
    subprocess.run([*words, *home], capture_output=True, check=True, timeout=60)
    assert refused(stack, "scheduler", Show(run=run)) == "unknown_run"
    sys_argv, sys.argv = sys.argv, ["mosaic", "prune", "--older-than", "soon", *home]
    try:
        assert main() == 2
    finally:
        sys.argv = sys_argv
    assert "is not an age" in capsys.readouterr().err


class HostAway:
    """Stands in for the bus, with one host that never answers: to wait for it for real takes as long as its limits."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    async def request(self, service, command, timeout):
        self.asked.append((service, command.name))
        if service == "supervisor.away":
            raise NoAnswerError(service, command.name, timeout)
        return command.result(**{"runs": {}} if "runs" in command.result.model_fields else {})


def test_host_that_does_not_answer_is_waited_for_once():
    def ended(name: str, *hosts: str) -> Run:
        run = Run(name, 1, RunSpec(worker="stress"), name, 1.0, 1.0, state=RunStateName.SUCCEEDED)
        run.attempts = [Attempt(name, number, host, Resources(), 1.0) for number, host in enumerate(hosts, 1)]
        return run

    def deleted(**how) -> tuple[HostAway, list[str], DeleteResult]:
        bus, forgotten = HostAway(), []
        command = Delete(older_than_s=0, **how)
        done = asyncio.run(delete(bus, command, runs, [], lambda run: forgotten.append(run.id)))
        return bus, forgotten, done

    runs = [ended("run-1", "away"), ended("run-2", "here", "away"), ended("run-3", "away"), ended("run-4", "here")]
    bus, forgotten, done = deleted()
    assert forgotten == [each.run for each in done.deleted] == ["run-4"]
    assert "mosaic delete run-1 --without-host" in done.kept[0].reason
    assert [name for service, name in bus.asked if service == "supervisor.away"] == ["ping"]
    assert [each.run for each in deleted(dry_run=True)[2].deleted] == ["run-4"]
    bus, forgotten, done = deleted(without_host=True)
    assert (forgotten, done.kept) == (["run-1", "run-2", "run-3", "run-4"], [])
    assert [name for service, name in bus.asked if service == "supervisor.away"] == ["ping"]
    assert [name for _, name in bus.asked].count("remove_files") == 2


def test_experiment_is_deleted_with_the_runs_of_its_shards(stack):
    """Its records are written by hand; the runs of its shards are those of the stress worker."""
    shard, old, other = (finished(stack, name=f"trial{end}", group="eval-trial") for end in ("-shard0", "-shard7", "s"))
    folder = ExperimentFolder(stack.home.experiments / "trial")
    folder.write_plan({"name": "trial", "group": "eval-trial", "until": None, "state": "finished"})
    folder.append([b"{}\n"])
    progress = Progress(state=ExperimentStateName.FINISHED)
    summary = ExperimentState(
        experiment="trial", state=progress.state, done=1, wanted=1, lineups=[], started_at=1.0, version=1
    )
    folder.write_state({"progress": progress.model_dump(mode="json"), "summary": summary.model_dump(mode="json")})
    stack.kill_and_restart("operator")
    stack.wait_for("operator")
    cli = Cli(stack.home.path)
    said = cli("experiments", "delete", "trial", "--dry-run").stdout
    assert "would delete trial, 1 episodes" in said
    assert "trial-shard0" in said
    assert folder.episodes.exists()

    # A run that another one needs is kept, and the experiment with it.
    waits = stack.submit(after=[shard], config={"events": 1}, requires=["nowhere"], wait_for_host=True)
    assert "1 runs are kept" in cli("experiments", "delete", "trial", code=2).stderr
    assert folder.episodes.exists()
    assert refused(stack, "scheduler", Show(run=old)) == "unknown_run"
    stack.cancel(waits)
    stack.wait_final(waits)

    heard = stack.bus.subscribe(topics.EXPERIMENT_STATES, max_queue=10)
    answer = cli.json("experiments", "delete", "trial")
    assert (answer["deleted"], [each["run"] for each in answer["runs"]["deleted"]]) == (True, [shard])
    message = stack.bus.wait_for(heard, 60)
    assert message is not None
    assert message.payload["state"] == "deleted"
    stack.bus.unsubscribe(heard)
    assert not folder.path.exists()
    assert stack.show(other).run.state == "succeeded"
    assert refused(stack, "operator", ShowExperiment(experiment="trial")) == "unknown_experiment"


def test_check_says_what_submit_would_say(stack):
    def check(**spec):
        return stack.bus.request("scheduler", Check(spec=spec), timeout=20)

    before = len(stack.bus.request("scheduler", Runs(), timeout=20).runs)
    fine = check(worker="stress", config={"events": 5}, name="mine")
    assert (fine.ok, fine.run_name, fine.problems) == (True, "mine", [])
    for spec in (
        {"worker": "stres"},
        {"worker": "stress", "profile": "nope"},
        {"worker": "stress", "config": {"events": "many"}},
        {"worker": "stress", "resources": {"cpus": 1000}},
        {"worker": "stress", "after": ["nobody"]},
    ):
        found = check(**spec)
        with pytest.raises(CommandRefusedError) as refusal:
            stack.submit(**{"resources": {}, **spec})
        assert not found.ok
        assert found.code == refusal.value.code
        assert all(each["message"] in refusal.value.message for each in found.problems)
        assert all(each["field"] for each in found.problems)
    wrong = check(worker="stress", resources={"cpus": -1}, retries={"max": "x"})
    assert {each["field"] for each in wrong.problems} == {"resources.cpus", "retries.max"}
    assert len(stack.bus.request("scheduler", Runs(), timeout=20).runs) == before


def test_files_are_read_only_below_the_folder_of_the_run(stack, tmp_path):
    run = finished(stack, name="files")
    folder = stack.home.runs / run / "1"
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    (folder / "link.txt").symlink_to(secret)
    (folder / "elsewhere").symlink_to(tmp_path)
    (folder / "in").mkdir()
    (folder / "in" / "data.bin").write_bytes(bytes(range(256)) * 10)
    os.mkfifo(folder / "pipe")
    listed = [each.path for each in stack.bus.request(HOST, Files(run=run), timeout=20).files]
    assert {"1/journal.jsonl", "1/log.txt", "1/in/data.bin"} <= set(listed)
    assert not {"1/link.txt", "1/pipe", "1/worker.json", "1/placed.json"} & set(listed)
    assert stack.bus.request(HOST, Files(run=run, limit=1), timeout=20).more
    part = stack.bus.request(HOST, ReadFile(run=run, path="1/in/data.bin", start=250, limit=10), timeout=20)
    assert (part.data, part.bytes) == (bytes(range(250, 256)) + bytes(range(4)), 2560)
    assert stack.bus.request(HOST, ReadFile(run=run, path="1/in/data.bin", start=9999), timeout=20).data == b""
    for path in (
        "1/link.txt",
        "1/elsewhere/secret.txt",
        "1/pipe",
        "1/in",
        "1",
        "../../scheduler/scheduler.db",
        "1/../../../scheduler/scheduler.db",
        str(secret),
        "/etc/passwd",
        "1//log.txt",
        "1/./log.txt",
        "1/worker.json",
        "1/none",
        "1/\0",
        "x" * 4000,
    ):
        assert refused(stack, HOST, ReadFile(run=run, path=path)) == "unknown_file"
    (folder / "pipe").unlink()
