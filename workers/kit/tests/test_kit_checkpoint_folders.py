"""Checkpoint folders: whole or absent, found by run or step, refused with the reason."""

import json
from dataclasses import dataclass

import pytest

from mosaic_worker.checkpoint_folders import CheckpointFolders
from mosaic_worker.errors import ConfigError


@dataclass(frozen=True)
class About:
    algorithm: str
    step: int
    format: str = "test"
    version: int = 3


FOLDERS = CheckpointFolders("toy", About, "about.json")


def save(folder, step, text="weights"):
    return FOLDERS.save(About("ppo", step), step, lambda draft: (draft / "model").write_text(text), folder)


def test_the_newest_step_of_a_run_is_found_and_read(tmp_path):
    for step in (1000, 20, 300):
        save(tmp_path / "checkpoints", step)
    found = FOLDERS.find(tmp_path, "policy_path")
    assert found.name == "step-1000"
    assert FOLDERS.read(found, "policy_path") == About("ppo", 1000)
    assert FOLDERS.find(found, "policy_path") == found
    FOLDERS.keep_newest(tmp_path / "checkpoints", 2)
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"step-300", "step-1000"}


def test_a_save_that_fails_leaves_the_checkpoint_of_an_earlier_attempt(tmp_path):
    def fail(draft):
        (draft / "model").write_text("half")
        raise OSError("disk full")

    path = save(tmp_path, 5)
    with pytest.raises(OSError, match="disk full"):
        FOLDERS.save(About("ppo", 5), 5, fail, tmp_path)
    assert (path / "model").read_text() == "weights"
    assert FOLDERS.find(tmp_path, "policy_path") == path
    assert (save(tmp_path, 5, "second") / "model").read_text() == "second"


def test_what_is_no_checkpoint_is_refused_with_the_reason(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "step-7").mkdir()  # without its JSON file
    for given, reason in [("file", "it is a file"), ("nowhere", "no such folder"), ("step-7", "no about.json")]:
        with pytest.raises(ConfigError, match=reason) as refused:
            FOLDERS.find(tmp_path / given, "policy_path")
        assert str(refused.value).startswith("policy_path: ")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"version": 4}, "format 'test' version 4; this worker reads test 3"),
        ({"format": "other"}, "format 'other' version 3"),
        ({"unknown": 1}, "damaged: TypeError"),
    ],
)
def test_a_checkpoint_of_another_kind_is_refused(tmp_path, change, reason):
    path = save(tmp_path, 5)
    about = json.loads((path / "about.json").read_text())
    (path / "about.json").write_text(json.dumps({**about, **change}))
    with pytest.raises(ConfigError, match=reason):
        FOLDERS.read(path, "policy_path")


def test_a_damaged_description_is_refused(tmp_path):
    path = save(tmp_path, 5)
    (path / "about.json").write_text("{")
    with pytest.raises(ConfigError, match="damaged"):
        FOLDERS.read(path, "policy_path")
