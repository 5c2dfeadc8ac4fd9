"""Sweeps and the commands that steer the scheduler, against a real stack with the baseline worker."""

from __future__ import annotations

import json
import re
import signal
from typing import TYPE_CHECKING

import pytest
from mosaic_cli import Cli
from stack import wait_until

from mosaic_bus import Bus, CommandRefusedError
from mosaic_bus.commands import Groups
from mosaic_bus.messages import RunSpec
from mosaic_services.cli.sweep import submission
from mosaic_services.home import StackHome

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

BASE = "worker: baseline\nconfig: {episodes: 3, step_events: false}\nresources: {cpus: 0.5, memory_mb: 128}\n"


@pytest.fixture
def start(cli) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts `mosaic`, and ends what a failed test left of it."""
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: str) -> subprocess.Popen[str]:
        started.append(cli.start(*arguments))
        return started[-1]

    yield begin
    for each in started:
        each.kill()
        each.communicate()


@pytest.fixture(scope="module")
def cli(tmp_path_factory) -> Iterator[Cli]:
    made = Cli(tmp_path_factory.mktemp("sweep") / "home")
    made("workers", "install", "baseline", timeout=280)
    made("up", "--detach", "--cpus", "2", "--memory-mb", "4096")
    yield made
    made("down")


def write(folder: Path, sweep: str, name: str = "s.yaml", base: str = BASE) -> str:
    path = folder / name
    path.write_text(f"{base}sweep: {sweep}\n")
    return str(path)


def running(cli: Cli, group: str) -> int:
    return sum(each["group"].startswith(group) for each in cli.json("runs", "--state", "running")["runs"])


@pytest.fixture
def paused(cli) -> Iterator[None]:
    """Nothing starts during the test."""
    cli("queue", "pause", "--reason", "for a test")
    yield
    cli("queue", "resume")


def test_sweep_runs_all_and_ranks_them(cli, tmp_path):
    file = write(tmp_path, "{grid: {agent: [random, passive]}, seeds: 2}", "rank.yaml")
    done = cli.json("sweep", file, "--wait")
    assert (done["total"], done["counts"]) == (4, {"succeeded": 4})
    assert re.fullmatch(r"rank-[0-9a-z]{6}", done["group"])
    assert {each["name"] for each in done["runs"]} == {
        f"rank-{agent}-seed{seed}" for agent in ("random", "passive") for seed in (1, 2)
    }
    assert [each["parameters"]["config.agent"] for each in done["runs"]] == ["random", "random", "passive", "passive"]
    returns = [each["summary"]["return_mean"] for each in done["runs"]]
    assert returns == sorted(returns, reverse=True)
    assert all(each["summary"]["complete"] for each in done["runs"])
    shown = cli("sweep", "show", done["group"][-6:], "--limit", "1").stdout
    assert "100 %  4 done" in shown
    assert re.search(r"RUN +NAME +AGENT +SEED +STATE +RETURN", shown)
    assert "1 of 4" in shown
    assert done["group"] in cli("sweep", "list").stdout
    assert len(cli.json("runs", "--group", done["group"])["runs"]) == 4
    watched = cli("watch", "--group", done["group"], "--once").stdout
    assert f"{done['group']}  " in watched
    assert "4 done" in watched
    assert cli.json("watch", "--group", done["group"], "--once")["group"]["total"] == 4


def test_one_wrong_run_refuses_the_whole_sweep_and_is_named(cli, tmp_path):
    before = cli.json("runs")["total"]
    refused = cli("sweep", write(tmp_path, "{grid: {agent: [random, pasive]}}", "wrong.yaml"), code=2)
    assert "run 2 of 2 (wrong-pasive)" in refused.stderr
    assert "config.agent" in refused.stderr
    assert cli.json("runs")["total"] == before
    assert "wrong-" not in cli("sweep", "list").stdout


def test_a_later_part_that_is_refused_cancels_the_earlier_ones(cli, paused, monkeypatch):
    monkeypatch.setattr(submission, "chunks", lambda specs: [specs[:2], specs[2:]])
    configs = [{"episodes": 1}, {"episodes": 2}, {"episodes": "many"}]
    specs = [RunSpec(worker="baseline", config=each, group="in-parts") for each in configs]
    with Bus(StackHome.find(cli.home).address()) as bus:
        with pytest.raises(CommandRefusedError, match=r"(?s)config.episodes.*the 2 runs .* are cancelled"):
            submission.submit_all(bus, "in-parts", specs)
        (group,) = bus.request("scheduler", Groups(group="in-parts")).groups
    assert group.counts == {"cancelled": 2}


def test_chunks_hold_no_more_than_a_message_can():
    specs = [RunSpec(worker="baseline", config={"text": "x" * 100})] * 7
    assert [len(each) for each in submission.chunks(specs, most_runs=3)] == [3, 3, 1]
    assert [len(each) for each in submission.chunks(specs, most_bytes=1)] == [1] * 7
    assert [len(each) for each in submission.chunks(specs)] == [7]


def test_rerun_repeats_only_what_failed_and_the_group_counts_it_once(cli, tmp_path):
    file = write(tmp_path, "{list: [{env_id: CartPole-v1}, {env_kwargs.nonsense: 1}]}", "half.yaml")
    failed = cli("sweep", file, "--wait", code=1)
    assert "1 done · 1 failed" in failed.stdout
    group = re.search(r"half-[0-9a-z]{6}", failed.stdout)[0]
    first = {each["state"]: each["run"] for each in cli.json("sweep", "show", group)["runs"]}
    shown = cli.json("sweep", "rerun", group, "--wait", code=1)
    assert (shown["total"], shown["counts"]) == (2, {"succeeded": 1, "failed": 1})
    second = {each["state"]: each["run"] for each in shown["runs"]}
    assert second["succeeded"] == first["succeeded"]
    assert second["failed"] != first["failed"]
    assert len(cli.json("runs", "--group", group)["runs"]) == 3
    assert "nonsense" in cli("why", second["failed"]).stdout


def test_cancelled_sweep_gives_4(cli, start, tmp_path):
    file = write(tmp_path, "{seeds: 6}", "ended.yaml")
    waiting = start("sweep", file, "episodes=1000000", "--wait")
    wait_until("runs", lambda: running(cli, "ended-") >= 2)
    assert "runs of ended-" in cli("sweep", "cancel", "ended-").stdout
    output, errors = waiting.communicate(timeout=60)
    assert waiting.returncode == 4, output + errors
    assert "6 cancelled" in output
    assert "have ended" in cli("cancel", "--group", "ended-", code=2).stderr


def test_dry_run_needs_no_stack(tmp_path):
    nowhere = Cli(tmp_path / "nowhere")
    file = write(tmp_path, "{grid: {lr: [1e-3, 1e-4]}, seeds: 30}")
    said = nowhere("sweep", file, "--dry-run").stdout
    assert "60 runs  (lr 2 × seeds 30)" in said
    assert "s-lr0.001-seed1\n" in said
    runs = nowhere.json("sweep", file, "--dry-run")["runs"]
    assert [each["config"]["lr"] for each in runs[::30]] == [0.001, 0.0001]
    refused = nowhere("sweep", file, "sweep.seeds=1000000", "--dry-run", code=2).stderr
    assert "2,000,000 runs (lr 2 × seeds 1,000,000) are too many: at most 20,000" in refused
    assert "no stack runs" in nowhere("sweep", file, code=3).stderr
    assert "Did you mean 'show'?" in nowhere("sweep", "shwo", "x", code=2).stderr
    assert "no such file" in nowhere("sweep", "no-such.yaml", code=2).stderr


def test_queue_shows_order_and_reasons_and_priority_changes_it(cli, paused):
    first, second = (cli.submit(f"name={name}", "episodes=1") for name in ("early", "late"))
    third = cli.json("submit", "--worker", "baseline", "episodes=1", "--after", first, "--priority", "-5")
    third = third["runs"][0]["run"]

    def order() -> list[str]:
        return [each["run"] for each in cli.json("queue", "show")["runs"]]

    assert order() == [first, second, third]
    assert "late (" in cli("priority", "late", "7").stdout
    assert order() == [second, first, third]
    shown = cli("queue", "show").stdout
    assert "paused: for a test" in shown
    assert "PRIORITY" in shown
    assert cli.json("show", "late")["run"]["priority"] == 7
    assert "priority" in cli("show", "late").stdout
    why = cli.json("why", "late")
    assert why["position"] == 1
    assert "paused" in why["answer"] + " ".join(why["facts"])
    assert cli.json("why", third)["run"]["state"] == "queued"
    cli("cancel", "early", "late", third, code=None)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["priority", "x"], "give a run or a group"),
        (["priority", "x", "high"], "'high' is not a whole number"),
        (["priority", "x", "5000"], "priority 5000 is not in the range -1000 to 1000"),
        (["priority", "--group", "no-such", "1"], "no group is called 'no-such'"),
        (["cancel"], "either runs or a group"),
        (["cancel", "x", "--group", "y"], "either runs or a group"),
        (["drain", "no-such-host"], "no host is called 'no-such-host'"),
        (["why", "no-such-run"], "no-such-run"),
        (["rerun", "no-such-run"], "no-such-run"),
        (["runs", "--group", "no-such"], "no group is called 'no-such'"),
        (["watch", "--group", "no-such"], "no group is called 'no-such'"),
        (["sweep", "show", "no-such"], "no group is called 'no-such'"),
        (["sweep", "resume", "no-such"], "no sweep with a driver is called 'no-such'"),
        (["submit", "--worker", "baseline", "--after", "no-such-run"], "no-such-run"),
        (["submit", "--worker", "baseline", "limits.wal_s=3"], "did you mean wall_s?"),
        (["submit", "--worker", "baseline", "requires=[no-such-tag]"], "no-such-tag"),
    ],
)
def test_bad_input_is_refused_with_2_and_one_line(cli, words, said):
    refused = cli(*words, code=2)
    assert refused.stderr.startswith("error: ")
    assert said in refused.stderr
    assert refused.stdout == ""


def test_drained_host_gets_nothing_and_says_so(cli):
    assert "local gets no new runs" in cli("drain", "local", "--reason", "new disk").stdout
    try:
        run = cli.submit("name=homeless", "episodes=1")
        assert "drained: new disk" in cli("hosts").stdout
        assert cli.json("hosts")["hosts"][0]["drained"] == "new disk"
        assert cli.state(run) == "queued"
        assert "drained" in cli("why", run).stdout
    finally:
        cli("drain", "local", "--undo")
    wait_until("the run to end", lambda: cli.state(run) == "succeeded")
    assert cli.json("hosts")["hosts"][0]["drained"] is None


def test_rerun_of_one_run_is_a_new_run_with_the_same_configuration(cli):
    first = cli.json("submit", "--worker", "baseline", "name=twice", "episodes=2", "seed=5", "--wait")["runs"][0]
    again = cli.json("rerun", first["run"], "--wait")["runs"][0]
    assert again["run"] != first["run"]
    assert again["summary"]["return_mean"] == first["summary"]["return_mean"]
    assert first["run"] in cli("show", again["run"]).stdout
    running = cli.submit("name=still-going", "episodes=1000000")
    assert "cancel it first" in cli("rerun", running, code=2).stderr
    hosts = cli("hosts").stdout
    assert "still-going" in hosts or cli.state(running) == "queued"
    cli("cancel", running)


def test_a_run_after_another_starts_when_that_has_succeeded(cli):
    first = cli.submit("name=train", "episodes=300")
    done = cli.json("submit", "--worker", "baseline", "name=evaluate", "episodes=1", "after=train", "--wait")["runs"][0]
    assert done["state"] == "succeeded"
    assert cli.state(first) == "succeeded"
    assert done["started_at"] >= cli.json("show", first)["run"]["ended_at"]
    assert "train" in cli("show", "evaluate").stdout


# ── optuna ───────────────────────────────────────────────────────────────────────────────────────────

SPACE = "random: {agent: {choice: [random, passive]}, seed: {int: [1, 1000]}}"


def optuna(folder: Path, name: str, more: str) -> str:
    return write(folder, f"{{driver: optuna, {SPACE}, {more}}}", name)


def runs_of(cli: Cli, group: str) -> list[dict]:
    return cli.json("runs", "--group", group, "--limit", "1000")["runs"]


def test_optuna_finds_the_better_agent(cli, tmp_path):
    file = optuna(tmp_path, "better.yaml", "trials: 6, concurrent: 3")
    done = cli.json("sweep", file, "episodes=20")
    assert done["best"]["parameters"]["config.agent"] == "random"
    assert done["best"]["value"] > 12  # passive falls over after nine or ten steps
    assert [each["state"] for each in done["trials"]] == ["complete"] * 6
    assert {each["run"] for each in done["trials"]} == {each["run"] for each in runs_of(cli, done["group"])}
    shown = cli.json("sweep", "show", done["group"])
    assert shown["runs"][0]["run"] == done["best"]["run"]
    summaries = {each["run"]: each["summary"]["return_mean"] for each in shown["runs"]}
    assert {each["run"]: each["value"] for each in done["trials"]} == summaries
    assert (cli.home / "sweeps" / done["group"] / "study.db").exists()


def test_optuna_prunes_what_is_behind(cli, tmp_path):
    # With this seed the first five trials, which are never pruned, are of the short kind and the sixth of the other:
    # many times as long, so that there is time to prune it, and far behind from its first episode on.
    space = "random: {env_id: {choice: [CartPole-v1, MountainCar-v0]}}"
    sweep = f"{{driver: optuna, {space}, seed: 30, trials: 6, concurrent: 1, prune: true}}"
    file = write(tmp_path, sweep, "pruned.yaml")
    done = json.loads(cli("sweep", file, "episodes=1000", "seed=1", "--json", timeout=280).stdout)
    assert [each["state"] for each in done["trials"]] == [*["complete"] * 5, "pruned"]
    run = cli.json("show", done["trials"][-1]["run"])["run"]
    assert run["state"] == "cancelled"
    assert re.search(r"pruned at step \d+: episode_return -200 is behind the median of the other trials", run["reason"])
    shown = cli("sweep", "show", done["group"]).stdout
    assert "pruned at step" in shown


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_driver_killed_in_the_middle_goes_on_and_runs_no_trial_twice(cli, start, tmp_path, number):
    file = optuna(tmp_path, f"killed-{int(number)}.yaml", "trials: 6, concurrent: 2")
    driver = start("sweep", file, "episodes=3000")
    output = ""
    while "complete" not in output:  # the first has ended, the second or third runs
        line = driver.stdout.readline()
        assert line, driver.stderr.read()
        output += line
    driver.send_signal(number)
    output, errors = driver.communicate(timeout=30)
    groups = [each["group"] for each in cli.json("sweep", "list")["groups"]]
    (group,) = [each for each in groups if each.startswith(f"killed-{int(number)}-")]
    before = {each["run"] for each in runs_of(cli, group)}
    assert 1 <= len(before) < 6
    if number == signal.SIGINT:
        assert driver.returncode == 130
        assert f"mosaic sweep resume {group}" in errors
    done = cli.json("sweep", "resume", group)
    runs = [each["run"] for each in runs_of(cli, group)]
    assert len(done["trials"]) == len(runs) == 6
    assert sorted(each["run"] for each in done["trials"]) == sorted(runs)
    assert before <= set(runs)
    assert {each["state"] for each in done["trials"]} == {"complete"}
    assert {each["attempt"] for each in runs_of(cli, group)} == {1}
    # All trials are done: to resume once more starts nothing.
    assert len(cli.json("sweep", "resume", group)["trials"]) == 6


def test_cancel_ends_the_driver_too(cli, start, tmp_path):
    file = optuna(tmp_path, "given-up.yaml", "trials: 4, concurrent: 2")
    driver = start("sweep", file, "episodes=1000000")
    wait_until("two trials", lambda: running(cli, "given-up-") == 2)
    group = runs_of(cli, "given-up")[0]["group"]
    refused = cli("sweep", "resume", group, code=1).stderr
    assert "already has a driver" in refused
    cli("sweep", "cancel", group)
    output, errors = driver.communicate(timeout=60)
    assert driver.returncode == 4, output + errors
    assert {each["state"] for each in runs_of(cli, group)} == {"cancelled"}
    assert len(runs_of(cli, group)) == 2


def test_trials_refused_at_once_end_the_driver_with_one_reason(cli, tmp_path):
    refused = cli("sweep", optuna(tmp_path, "refused.yaml", "trials: 3"), "episodes=none", code=2)
    assert re.search(r"trial \d \(agent=\w+, seed=\d+\) is refused: config.episodes", refused.stderr)
    assert len(refused.stderr.splitlines()) <= 3


def test_runs_without_the_metric_are_failures_that_say_so(cli, tmp_path):
    file = optuna(tmp_path, "no-metric.yaml", "trials: 1, metric: accuracy")
    done = cli("sweep", file, code=1)
    assert "no finite 'accuracy'; it has: episode_return, return_mean" in done.stderr


def test_without_optuna_it_is_said_how_to_install_it(cli, tmp_path):
    (tmp_path / "optuna.py").write_text("raise ModuleNotFoundError('No module named optuna')\n")
    without = Cli(cli.home)
    without.env["PYTHONPATH"] = str(tmp_path)
    refused = without("sweep", optuna(tmp_path, "without.yaml", "trials: 1"), code=2)
    assert "needs the package optuna" in refused.stderr
    assert "-m pip install optuna" in refused.stderr
