"""The command line while services are silent or restarted."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

import psutil
import pytest
from mosaic_cli import Cli
from stack import STRESS, wait_until

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


@pytest.fixture
def place(tmp_path, stress) -> Iterator[Place]:
    """A stack of its own, for what would spoil a shared one."""
    made = Place(tmp_path / "home")
    made("up", "--detach", "--cpus", "2")
    yield made
    for name in ("broker", "scheduler", "telemetry", "operator", "gateway", "supervisor"):
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            os.kill(made.pid(name), signal.SIGCONT)
    made("down")


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
        "operator",
        "gateway",
    ]
    place.freeze("scheduler")
    figures = place.json("stats", code=3)
    assert figures["silent"] == ["scheduler", "supervisor.local"]
    assert [each["service"] for each in figures["services"]] == ["broker", "telemetry", "operator", "gateway"]


@pytest.mark.slow
def test_a_second_up_does_not_tell_what_the_first_has_logged(place):
    place.restart("telemetry")
    log = place.home / "logs" / "up.log"
    wait_until("the stack tells of it", lambda: "telemetry restarted" in log.read_text())
    second = place("up", "--detach", code=2)
    assert second.stderr.startswith(f"error: another up (pid {place.pid('up')}) already runs in ")
    assert "telemetry" not in second.stderr
