"""The command line when something is amiss: silent services, input that cannot be used, output that goes nowhere."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
from typing import TYPE_CHECKING

import psutil
import pytest
from mosaic_cli import MOSAIC, Cli
from stack import STRESS, wait_until

from mosaic_services.environments import build, read_recipe
from mosaic_services.specs import read_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Place(Cli):
    """A home with the stress worker; `freeze` makes one of its services silent, as a machine without memory would."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.env["MOSAIC_WORKERS"] = str(STRESS)

    def pid(self, service: str) -> int:
        return int((self.home / f"{service}.lock").read_text())

    def freeze(self, service: str) -> int:
        os.kill(pid := self.pid(service), signal.SIGSTOP)
        return pid

    def restart(self, service: str) -> None:
        lock = self.home / f"{service}.lock"
        os.kill(int(before := lock.read_text()), signal.SIGKILL)
        wait_until(f"another {service}", lambda: lock.read_text() not in {"", before})

    def of_run(self, run: str) -> set[int]:
        """The processes of a run: its run host and its worker."""
        found = set()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE and run in " ".join(process.cmdline()):
                    found.add(process.pid)
        return found


@pytest.fixture(scope="session")
def stress() -> None:
    """The environment of the stress worker, built once and cached outside the checkout."""
    build(read_recipe(STRESS), "default", lambda _step, _percent: None)


@pytest.fixture
def place(tmp_path, stress) -> Iterator[Place]:
    """A stack of its own, for what would spoil a shared one."""
    made = Place(tmp_path / "home")
    made("up", "--detach", "--cpus", "2")
    yield made
    for name in ("broker", "scheduler", "telemetry", "supervisor"):
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            os.kill(made.pid(name), signal.SIGCONT)
    made("down")


# ── silent services ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("silent", ["scheduler", "supervisor"])
def test_runs_are_kept_although_a_service_is_silent(place, silent):
    submitted = place.json("submit", "--worker", "stress", "end=hang", "resources.memory_mb=64")
    run = submitted["runs"][0]["run"]
    wait_until("the run runs", lambda: place.state(run) == "running")
    before = place.of_run(run)
    assert before
    place.freeze(silent)
    stopped = place("down", "--keep-runs")
    assert "could not be told to leave" in stopped.stderr
    assert stopped.stdout.endswith("stopped\n")
    assert place.of_run(run) == before
    place("up", "--detach")
    wait_until("the run runs", lambda: place.state(run) == "running")
    assert place.of_run(run) == before


@pytest.mark.slow
def test_a_silent_supervisor_is_missed_although_the_scheduler_has_never_heard_of_it(place):
    place.freeze("supervisor")
    place.restart("scheduler")
    status: dict = {}

    def scheduler_answers() -> bool:
        status.update(place.json("status", code=3))
        return {each["service"]: each["answer"] for each in status["services"]}["scheduler"] == "up"

    wait_until("the scheduler answers", scheduler_answers)
    assert status["hosts"] == []
    assert [each["service"] for each in status["services"] if each["answer"] == "silent"] == ["supervisor.local"]
    stats = place("stats", code=3)
    assert stats.stderr.startswith("error: supervisor.local does not answer")
    assert [line.split()[0] for line in stats.stdout.splitlines() if "pid" in line] == [
        "broker",
        "scheduler",
        "telemetry",
    ]
    place.freeze("scheduler")
    figures = place.json("stats", code=3)
    assert figures["silent"] == ["scheduler", "supervisor.local"]
    assert [each["service"] for each in figures["services"]] == ["broker", "telemetry"]


@pytest.mark.slow
def test_a_second_up_does_not_tell_what_the_first_has_logged(place):
    place.restart("telemetry")
    log = place.home / "logs" / "up.log"
    wait_until("the stack tells of it", lambda: "telemetry restarted" in log.read_text())
    second = place("up", "--detach", code=2)
    assert second.stderr.startswith(f"error: another up (pid {place.pid('up')}) already runs in ")
    assert "telemetry" not in second.stderr


# ── submitting ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def shared(tmp_path_factory, stress) -> Iterator[Place]:
    """A stack that starts nothing, for tests that leave it as it was."""
    made = Place(tmp_path_factory.mktemp("mishaps") / "home")
    made("up", "--detach", "--cpus", "2")
    made("queue", "pause")
    yield made
    made("down")


@pytest.mark.slow
@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_of_several_runs_one_refused_means_none_queued(shared, tmp_path, as_json):
    (tmp_path / "good.yaml").write_text("{worker: stress, name: good}")
    (tmp_path / "bad.yaml").write_text("{worker: stress, name: bad, resources: {cpus: 64}}")
    before = shared.json("runs")["total"]
    refused = shared("submit", str(tmp_path / "good.yaml"), str(tmp_path / "bad.yaml"), *as_json, code=2)
    assert f"error: {tmp_path / 'bad.yaml'}: run 2 of 2 (bad): " in refused.stderr
    assert "none of the 2 runs is queued" in refused.stderr
    assert shared.json("runs")["total"] == before
    done = shared.json("submit", str(tmp_path / "good.yaml"), str(tmp_path / "bad.yaml"), "resources.cpus=1")
    assert [each["name"] for each in done["runs"]] == ["good", "bad"]
    assert shared.json("runs")["total"] == before + 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lr #3", "123", "a: b", "[x", "é😀\"'"])
def test_a_name_is_taken_as_it_is(shared, name):
    (run,) = shared.json("submit", "--worker", "stress", "--name", name, "name=other")["runs"]
    assert run["name"] == name
    assert shared.json("show", run["run"])["spec"]["name"] == name


def test_a_value_may_be_longer_than_a_file_name(tmp_path):
    cli = Cli(tmp_path / "home")
    assert "no stack runs" in cli("submit", "--worker", "stress", f"note={'x' * 5000}", code=3).stderr
    assert "File name too long" in cli("sweep", "x" * 5000, code=2).stderr


@pytest.mark.slow
def test_export_into_a_file_is_refused(shared, tmp_path):
    run = shared.json("submit", "--worker", "stress")["runs"][0]["run"]
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "x"
    assert shared("export", run, "--out", str(out), code=2).stderr.startswith(f"error: cannot write {out}: ")


# ── input that cannot be used, output that goes nowhere ──────────────────────────────────────────────


@pytest.mark.parametrize("command", [["up"], ["up", "--detach"], ["status"], ["down"]])
def test_a_home_that_is_a_file(tmp_path, command):
    (tmp_path / "home").touch()
    refused = Cli(tmp_path / "home")(*command, code=2)
    assert refused.stderr.startswith(f"error: {tmp_path / 'home'}")
    assert "defect" not in refused.stderr


@pytest.mark.parametrize(
    ("value", "said"),
    [("2024-13-45", "month must be in 1..12"), ("&a [*a]", "recursive"), ("[" * 1000, "nested too deep")],
)
def test_yaml_that_cannot_be_read_is_bad_input(tmp_path, refusal, value, said):
    file = tmp_path / "file.yaml"
    file.write_text(f"worker: stress\nconfig:\n  when: {value}\n")
    refused = refusal("submit", str(file))
    assert refused.startswith(f"error: {file}")
    assert said in refused
    assert refusal("submit", "--worker", "stress", f"when={value}").startswith("error: when: ")
    file.write_text(f"host: {value}\n")
    refused = refusal("up", "--config", str(file))
    assert refused.startswith(f"error: {file}")
    assert said in refused


@pytest.mark.parametrize(
    ("text", "where", "key"),
    [
        ("worker: stress\nworker: baseline\n", "2:1", "worker"),
        ("worker: stress\nconfig: {lr: 1, gamma: 2, lr: 3}\n", "2:27", "lr"),
    ],
)
def test_field_that_is_given_twice_is_refused_and_where(tmp_path, refusal, text, where, key):
    file = tmp_path / "file.yaml"
    file.write_text(text)
    assert refusal("submit", str(file)).startswith(f"error: {file}:{where}: not YAML: '{key}' is given twice")


def test_file_of_a_sweep_is_told_where_it_belongs(tmp_path, refusal):
    file = tmp_path / "file.yaml"
    file.write_text("worker: stress\nsweep: {seeds: 3}\n")
    assert "mosaic sweep FILE" in refusal("submit", str(file))


def test_yaml_may_say_something_twice_and_name_days_that_exist(tmp_path):
    file = tmp_path / "file.yaml"
    file.write_text("worker: stress\nconfig: {a: &a {x: [1]}, b: *a, c: {<<: *a, y: 2}, when: 2024-12-05}\n")
    config = read_file(file)["config"]
    assert (config["a"], config["b"], config["c"]) == ({"x": [1]}, {"x": [1]}, {"x": [1], "y": 2})
    assert str(config["when"]) == "2024-12-05"


@pytest.mark.slow
def test_a_width_that_is_none_is_no_width(tmp_path):
    cli = Cli(tmp_path / "home")
    cli.env.pop("COLUMNS", None)
    plain = cli("workers", "list").stdout
    for columns in ("", "wide", "0"):
        cli.env["COLUMNS"] = columns
        assert cli("workers", "list").stdout == plain


@pytest.mark.slow
@pytest.mark.parametrize(
    ("redirection", "code", "said"),
    [("<&- >&-", 0, ""), (">/dev/full", 2, "error: No space left on device\n"), (">/dev/full --json", 2, "error: No")],
)
def test_output_that_goes_nowhere(tmp_path, redirection, code, said):
    line = f"{shlex.join(MOSAIC)} workers list {redirection}"
    done = subprocess.run(["sh", "-c", line], env=Cli(tmp_path).env, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith(said)
    assert said or not done.stderr
