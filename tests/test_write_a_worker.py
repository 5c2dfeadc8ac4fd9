"""The complete worker of docs/write-a-worker.md: built from the page, checked, and trained through the bus."""

from __future__ import annotations

import json
import re
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from stack import ROOT, Stack, wait_until

from mosaic_services.environments import build, read_recipe

if TYPE_CHECKING:
    from pathlib import Path

    from mosaic_services.environments import Environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

FILES = dict(
    re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", (ROOT / "docs" / "write-a-worker.md").read_text(), re.DOTALL)
)
CONFIG = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 4096, "seed": 7}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The files of the page."""
    found = tmp_path_factory.mktemp("page") / "sb3_worker"
    for name, text in FILES.items():
        (found / name).parent.mkdir(parents=True, exist_ok=True)
        (found / name).write_text(text)
    return found


@pytest.fixture(scope="module")
def environment(folder) -> Environment:
    return build(read_recipe(folder), "default", lambda _step, _percent: None)


def test_worker_of_the_page_passes_the_compliance_suite(environment):
    command = [environment.python, "-m", "mosaic_worker.check", "sb3", "--json"]
    done = subprocess.run(command, env=environment.environ(), capture_output=True, text=True, check=False, timeout=900)
    checks = {each["id"]: each for each in json.loads(done.stdout)["checks"]}
    assert {name for name, each in checks.items() if each["status"] == "fail"} == set(), done.stdout
    assert checks["resume"]["status"] == "pass"


def test_worker_of_the_page_trains_through_the_bus_stops_and_starts_warm(folder, environment, tmp_path):
    def events(run: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in stack.journal(run).read_text().splitlines()]

    with Stack(tmp_path / "home", environ={"MOSAIC_WORKERS": str(folder)}) as stack:
        run = stack.submit(worker="sb3", config=CONFIG, resources={"cpus": 1, "memory_mb": 512})
        assert stack.wait_final(run).state == "succeeded", stack.state(run).reason
        by_name = {
            name: [each for each in events(run) if each["event"] == name]
            for name in ("run_started", "episode", "scalars")
        }
        assert by_name["episode"][-1]["return"] > 0
        assert any("train/value_loss" in each["values"] for each in by_name["scalars"])
        assert by_name["run_started"][0]["config"]["algo_params"]["n_steps"] == 2048
        wait_until("the template is ready", lambda: "template ready" in stack.log("supervisor"))
        endless = {**CONFIG, "total_timesteps": 10_000_000}
        run = stack.submit(worker="sb3", config=endless, resources={"cpus": 1, "memory_mb": 512})
        wait_until(
            "it saves", lambda: stack.journal(run).exists() and "checkpoint_saved" in stack.journal(run).read_text()
        )
        assert json.loads((stack.home.runs / run / "1" / "host.json").read_text())["warm"]
        stack.cancel(run)
        assert stack.wait_final(run).state == "cancelled"
        assert events(run)[-1]["event"] == "run_cancelled"
    assert stack.leftovers() == []
