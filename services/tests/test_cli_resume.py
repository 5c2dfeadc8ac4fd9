"""`mosaic resume`, `mosaic rerun KEY=VALUE` and `mosaic open-tensorboard`, with the real CleanRL worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from mosaic_cli import Cli

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

PPO = ("--worker", "cleanrl", "--name", "first", "algo=ppo", "env_id=CartPole-v1", "total_timesteps=2048", "seed=1")


@pytest.fixture(scope="module")
def cli(tmp_path_factory) -> Iterator[Cli]:
    made = Cli(tmp_path_factory.mktemp("resume") / "home")
    made("workers", "install", "cleanrl", timeout=600)
    made("up", "--detach")
    made("submit", *PPO, "--wait", timeout=280)
    yield made
    made("down")


def test_resume_trains_on_from_the_last_checkpoint_for_so_many_more_steps(cli):
    cli("resume", "first", "--steps", "1024", "--wait", timeout=280)
    detail = cli.json("show", "first-resumed")
    assert detail["run"]["state"] == "succeeded"
    assert detail["summary"]["step"] == 2048 + 1024
    (loaded,) = [line for line in cli.journal(detail["run"]["run"]) if '"checkpoint_loaded"' in line]
    assert '"step":2048' in loaded.replace(" ", "")


def test_rerun_with_other_values_is_a_run_of_its_own(cli):
    again = cli.json("rerun", "first", "seed=2", "total_timesteps=512")["runs"][0]["run"]
    spec = cli.json("show", again)["spec"]
    assert (spec["config"]["seed"], spec["config"]["total_timesteps"], spec["replaces"]) == (2, 512, "")
    assert spec["config"]["env_id"] == "CartPole-v1"


def test_what_cannot_be_resumed_is_refused(cli):
    cli("queue", "pause")
    try:
        waiting = cli.json("rerun", "first", "seed=3")["runs"][0]["run"]
        assert "only a run that has ended" in cli("resume", waiting, code=2).stderr
    finally:
        cli("cancel", waiting)
        cli("queue", "resume")
    assert cli("resume", "nobody", code=2).stderr.startswith("error: ")


def test_tensorboard_gets_the_curves_under_readable_names(cli, tmp_path: Path):
    out = tmp_path / "tb"
    cli("open-tensorboard", "first", "--out", str(out))
    (folder,) = out.iterdir()
    assert folder.name.startswith("first-")
    (events,) = folder.iterdir()
    assert b"episode_return" in events.read_bytes()
    assert "exists already" in cli("open-tensorboard", "first", "--out", str(out), code=2).stderr


def test_show_lists_the_files_that_a_run_reported(cli):
    found = cli.json("show", "first")["artifacts"]
    assert "manifest" in [each["kind"] for each in found]
    assert found[0]["path"] in cli("show", "first").stdout
