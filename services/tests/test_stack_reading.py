"""What a stopped stack has stored can be read, and reading changes nothing."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from mosaic_cli import Cli

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> Cli:
    """A home whose stack has run one run and holds another in its queue, and was then stopped."""
    made = Cli(tmp_path_factory.mktemp("stopped") / "home")
    made("workers", "install", "baseline", timeout=280)
    made("up", "--detach")
    small = ("resources.cpus=0.5", "resources.memory_mb=128", "step_events=false")
    made("submit", "--worker", "baseline", "name=done", "episodes=3", *small, "--wait", timeout=280)
    made("queue", "pause")
    made("submit", "--worker", "baseline", "name=waits", *small)
    made("down")
    return made


def digest(home: Path) -> dict[str, str]:
    stores = [home / "scheduler" / "scheduler.db", home / "telemetry" / "telemetry.db"]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in stores}


def test_every_reading_command_answers_and_nothing_is_changed_or_left(stopped, tmp_path: Path):
    before = digest(stopped.home)
    listed = stopped.json("runs")
    assert {each["name"]: each["state"] for each in listed["runs"]} == {"done": "succeeded", "waits": "queued"}
    assert stopped.json("show", "done")["summary"]["episodes"] == 3
    assert stopped.json("series", "done", "episode_return")["points"] == 3
    assert stopped.json("logs", "done", "--events")["lines"]
    assert stopped.json("why", "waits")["run"]["state"] == "queued"
    assert stopped.json("compare", "done")["settings"][0]["n"] == 1
    assert stopped.json("export", "done", "--out", str(tmp_path / "out"))["rows"]["episodes"] == 3
    assert digest(stopped.home) == before
    assert not (stopped.home / "bus" / "in.sock").exists()


def test_python_reads_it_too_and_leaves_no_process(stopped):
    script = "import json, mosaic; print(json.dumps(mosaic.run('done').episodes()['return'].tolist()))"
    environ = {**os.environ, "MOSAIC_HOME": str(stopped.home)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=False, timeout=120
    )
    assert (done.returncode, len(json.loads(done.stdout))) == (0, 3), done.stderr


def test_what_needs_a_stack_still_says_so(stopped):
    for words in (("cancel", "waits"), ("submit", "--worker", "baseline"), ("logs", "done", "--follow")):
        assert "no stack runs" in stopped(*words, code=3).stderr


def test_home_without_stores_has_nothing_to_read(tmp_path: Path):
    assert "no stack runs" in Cli(tmp_path / "nothing")("runs", code=3).stderr


def test_up_says_what_it_takes_over_and_can_leave_the_queue_paused(stopped):
    started = stopped("up", "--detach", "--paused")
    try:
        assert "1 queued" in started.stdout
        assert stopped.state("waits") == "queued"
        assert stopped.json("hosts")["paused"] == "mosaic up --paused"
        stopped("queue", "resume")
        assert stopped("watch", "waits", "--until-done", timeout=280).returncode == 0
        assert stopped.state("waits") == "succeeded"
    finally:
        stopped("down")
