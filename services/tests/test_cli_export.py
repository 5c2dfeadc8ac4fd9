"""`mosaic export`: what is written, and what is never replaced."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from mosaic_cli import Cli

from mosaic_services.cli.export import command as export
from mosaic_services.cli.export.columns import EPISODES, table_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def cli(tmp_path_factory) -> Iterator[Cli]:
    made = Cli(tmp_path_factory.mktemp("cli") / "home")
    made("workers", "install", "baseline", timeout=280)
    made("up", "--detach", "--cpus", "4")
    yield made
    made("down")


@pytest.mark.slow
def test_force_replaces_only_an_export(cli, tmp_path, monkeypatch):
    run = cli.json("submit", "--worker", "baseline", "episodes=3", f"seed={2**63}", "--wait")["runs"][0]["run"]
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("x")
    link = tmp_path / "link"
    link.symlink_to(mine)
    monkeypatch.chdir(mine)
    for out in (str(mine), str(link), "."):
        refused = cli("export", run, "--out", out, "--force", code=2).stderr
        assert f"{mine} holds more than an export: thesis.txt" in refused
    assert (mine / "thesis.txt").read_text() == "x"

    real = tmp_path / "real"
    link.unlink()
    link.symlink_to(real)
    cli("export", run, "--out", str(link))
    (real / "logs.parquet").write_text("stale")
    cli("export", run, "--out", str(link), "--force")
    assert link.is_symlink()
    assert pq.read_table(link / "logs.parquet").num_rows == 0
    monkeypatch.chdir(real)
    assert "is the current folder" in cli("export", run, "--out", ".", "--force", code=2).stderr
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "mine", "real"]

    episodes = pq.read_table(real / "episodes.parquet").to_pylist()
    lines = pq.read_table(real / "events.parquet").column("line").to_pylist()
    assert len(episodes) == 3
    assert any(str(2**63) in line for line in lines)


def folder_of(tmp_path: Path, *names: str) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    for name in names:
        (folder / name).write_text("old")
    return folder


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("run.json", "a", "b", "c", "d"), "more than an export: a, b, c and 1 more"),
        (("logs.parquet",), "has no run.json"),
    ],
)
def test_a_folder_that_is_no_export_is_refused(tmp_path, names, said):
    with pytest.raises(export.InputError, match=said):
        export._require_replaceable(folder_of(tmp_path, *names))


@pytest.mark.parametrize("names", [(), ("run.json",), ("run.json", "events.parquet", "logs.parquet")])
def test_an_export_or_an_empty_folder_is_replaced(tmp_path, names):
    folder, scratch = folder_of(tmp_path, *names), tmp_path / "scratch"
    scratch.mkdir()
    (scratch / "run.json").write_text("new")
    export._replace(scratch, folder)
    assert [(each.name, each.read_text()) for each in folder.iterdir()] == [("run.json", "new")]
    assert list(tmp_path.iterdir()) == [folder]


def test_an_export_that_cannot_be_put_in_place_leaves_the_old_one(tmp_path):
    folder = folder_of(tmp_path, "run.json")
    with pytest.raises(FileNotFoundError):
        export._replace(tmp_path / "gone", folder)
    assert (folder / "run.json").read_text() == "old"
    assert list(tmp_path.iterdir()) == [folder]


def test_a_folder_that_cannot_be_moved_stays_and_nothing_is_left_beside_it(tmp_path, monkeypatch):
    folder, scratch = folder_of(tmp_path, "run.json"), tmp_path / "scratch"
    scratch.mkdir()

    def busy(*_: object) -> None:
        """A fake of os.replace for a folder that something is mounted on."""
        raise OSError(16, "busy")

    monkeypatch.setattr(os, "replace", busy)
    with pytest.raises(OSError, match="busy"):
        export._replace(scratch, folder)
    assert (folder / "run.json").read_text() == "old"
    assert sorted(tmp_path.iterdir()) == [folder, scratch]


@pytest.mark.parametrize(
    ("column", "value", "kept"),
    [
        ("seed", 2**63, None),
        ("seed", -(2**63) - 1, None),
        ("seed", float(2**70), None),  # how a larger number comes out of JSON
        ("seed", 2**63 - 1, 2**63 - 1),
        ("return", 2**60, float(2**60)),
        ("agent", 7, None),
    ],
)
def test_a_value_that_does_not_fit_its_column_is_null_there(column, value, kept):
    rows = [{"attempt": 1, "number": 0, column: value}, {"attempt": 1, "number": 1, "seed": 5}]
    first, second = table_of(rows, EPISODES).to_pylist()
    assert (first["number"], first[column]) == (0, kept)
    assert (second["number"], second["seed"]) == (1, 5)
