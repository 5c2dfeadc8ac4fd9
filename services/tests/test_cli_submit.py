"""`mosaic submit` against a stack that starts nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from mosaic_cli import Cli
from stack import STRESS

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def shared(tmp_path_factory, stress) -> Iterator[Cli]:
    """A stack that starts nothing, for tests that leave it as it was."""
    made = Cli(tmp_path_factory.mktemp("submit") / "home")
    made.env["MOSAIC_WORKERS"] = str(STRESS)
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


@pytest.mark.slow
def test_export_into_a_file_is_refused(shared, tmp_path):
    run = shared.json("submit", "--worker", "stress")["runs"][0]["run"]
    (tmp_path / "file").touch()
    out = tmp_path / "file" / "x"
    assert shared("export", run, "--out", str(out), code=2).stderr.startswith(f"error: cannot write {out}: ")
