"""`mosaic compare`, `mosaic series` of several runs and `import mosaic`, against a real stack."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from mosaic_cli import Cli

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.slow

SWEEP = """
worker: baseline
name: agents
config: {episodes: 5, env_id: CartPole-v1, step_events: false}
resources: {cpus: 0.5, memory_mb: 128}
sweep: {grid: {agent: [random, passive]}, seeds: 3}
"""


@pytest.fixture(scope="module")
def cli(tmp_path_factory) -> Iterator[Cli]:
    folder = tmp_path_factory.mktemp("compare")
    made = Cli(folder / "home")
    made("workers", "install", "baseline", timeout=280)
    made("up", "--detach", "--cpus", "2", "--memory-mb", "4096")
    (folder / "sweep.yaml").write_text(SWEEP)
    made("sweep", str(folder / "sweep.yaml"), "--wait", timeout=280)
    yield made
    made("down")


@pytest.fixture(scope="module")
def group(cli) -> str:
    return cli.json("sweep", "list")["groups"][0]["group"]


def test_settings_have_their_seeds_folded_and_the_best_comes_first(cli, group, tmp_path: Path):
    png, table = tmp_path / "c.png", tmp_path / "c.csv"
    found = cli.json("compare", group, "--png", str(png), "--csv", str(table))
    best, other = found["settings"]
    assert (best["values"], best["n"], other["values"], other["n"]) == (
        {"config.agent": "random"},
        3,
        {"config.agent": "passive"},
        3,
    )
    means = [cli.json("show", run)["summary"]["return_mean"] for run in best["runs"]]
    assert best["mean"] == pytest.approx(sum(means) / 3)
    assert best["mean_interval"][0] < best["mean"] < best["mean_interval"][1]
    assert len(best["curve"]["steps"]) == len(best["curve"]["mean"]) > 1
    assert png.read_bytes().startswith(b"\x89PNG")
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["config.agent"], row["seeds"]) for row in rows] == [("random", "3"), ("passive", "3")]
    assert float(rows[0]["mean"]) == pytest.approx(best["mean"])


def test_table_and_plot_for_people(cli, group):
    shown = cli("compare", group, "--lowest").stdout
    assert shown.index("agent=passive") < shown.index("agent=random")
    assert "fewer than 5 seeds" in shown


def test_what_cannot_be_compared_is_refused(cli, group):
    assert cli("compare", "nobody", code=2).stderr.startswith("error: ")
    assert "no run has a setting 'lr'" in cli("compare", group, "--by", "lr", code=2).stderr
    assert "no_such" in cli("compare", group, "--metric", "no_such", code=2).stderr


def test_series_of_two_runs_have_common_axes(cli, group):
    names = ["agents-random-seed1", "agents-passive-seed1"]
    assert [each["points"] for each in cli.json("series", *names, "episode_return")] == [5, 5]
    assert all(name in cli("series", *names, "episode_return").stdout for name in names)
    assert "did you mean episode_return" in cli("series", *names, "episode_retrun", code=2).stderr


def test_python_front_submits_waits_and_gives_dataframes(cli, group):
    script = f"""
import json, mosaic
run = mosaic.submit({{"worker": "baseline", "resources": {{"cpus": 0.5, "memory_mb": 128}}}},
    env_id="CartPole-v1", episodes=4, seed=3).wait(200)
same = mosaic.run(run.name)
print(json.dumps([run.state.state, same.id == run.id, run.episodes()["return"].tolist(),
    run.series("episode_return")["value"].tolist(), mosaic.compare([{group!r}])["seeds"].tolist()]))
"""
    environ = {**os.environ, "MOSAIC_HOME": str(cli.home)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    state, same, returns, values, seeds = json.loads(done.stdout)
    assert (state, same, len(returns), returns == values, seeds) == ("succeeded", True, 4, True, [3, 3])


def test_group_is_exported_with_a_table_of_its_runs(cli, group, tmp_path: Path):
    out = tmp_path / "group"
    assert len(cli.json("export", "--group", group, "--out", str(out))["runs"]) == 6
    rows = pq.read_table(out / "runs.parquet").to_pylist()
    assert {row["config.agent"] for row in rows} == {"random", "passive"}
    assert [row["episodes"] for row in rows] == [5] * 6
    folders = [each for each in out.iterdir() if each.is_dir()]
    assert len(folders) == 6
    assert pq.read_table(folders[0] / "episodes.parquet").num_rows == 5
    assert "exists already" in cli("export", "--group", group, "--out", str(out), code=2).stderr
    assert "give a RUN" in cli("export", "--out", str(tmp_path / "x"), code=2).stderr
