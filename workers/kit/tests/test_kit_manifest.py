"""The manifest lists a run's files, with paths that stay valid when the folder moves."""

import json
import os

import pytest

from mosaic_worker.emitter import Emitter
from mosaic_worker.manifest import Manifest


def test_paths_inside_are_relative_and_others_absolute(tmp_path):
    manifest = Manifest(tmp_path, "r1", "tiny", clock=lambda: 12.5)
    manifest.add("tensorboard", [tmp_path / "tb", "tb"])
    manifest.add("checkpoints", "ckpt/1.pt")
    manifest.add("videos", "/elsewhere/v.mp4")
    manifest.set_wandb(project="p", dir=tmp_path / "wandb")
    assert json.loads(manifest.write().read_text()) == {
        "run_id": "r1",
        "worker": "tiny",
        "created_at": 12.5,
        "tensorboard": ["tb"],
        "checkpoints": ["ckpt/1.pt"],
        "logs": [],
        "videos": ["/elsewhere/v.mp4"],
        "wandb": {"project": "p", "dir": "wandb"},
    }
    assert os.listdir(tmp_path) == ["analytics.json"]  # noqa: PTH208 - no temporary file is left


def test_writing_reports_an_artifact(tmp_path):
    fd = os.open(tmp_path / "journal", os.O_WRONLY | os.O_CREAT)
    Manifest(tmp_path, "r1", "tiny").write(Emitter(fd))
    os.close(fd)
    event = json.loads((tmp_path / "journal").read_text())
    assert (event["event"], event["kind"], event["path"]) == ("artifact", "manifest", "analytics.json")


def test_an_unknown_kind_is_refused_with_the_valid_kinds(tmp_path):
    with pytest.raises(ValueError, match="kind 'movies' is not one of tensorboard, checkpoints, logs, videos"):
        Manifest(tmp_path, "r1", "tiny").add("movies", "x")
