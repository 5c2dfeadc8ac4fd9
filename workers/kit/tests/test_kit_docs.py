"""The Python of docs/write-a-worker.md works as it stands."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from mosaic_worker.config import parse_config
from mosaic_worker.frames.settings import FrameConfig

KIT = Path(__file__).resolve().parents[1]
PAGE = KIT.parents[1] / "docs" / "write-a-worker.md"
SMALLEST, FRAMES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def test_the_smallest_worker_of_the_documentation_runs(tmp_path):
    (tmp_path / "coin.py").write_text(SMALLEST)
    (tmp_path / "worker.json").write_text(json.dumps({"run_id": "r1", "episodes": 3, "seed": 7}))
    done = subprocess.run(
        [sys.executable, "coin.py", "--config", "worker.json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(KIT)},
        capture_output=True,
        check=True,
        timeout=60,
    )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["event"] for event in events] == ["run_started", *["episode"] * 3, "run_completed"]
    assert events[-1]["summary"] == {"heads": sum(event["return"] for event in events[1:4])}


def test_the_environment_of_the_documentation_is_shown(tmp_path, monkeypatch):
    pytest.importorskip("gymnasium", reason="gymnasium is in the workers' environments")
    monkeypatch.setenv("MOSAIC_FASTLANE_DIR", str(tmp_path))
    config = parse_config(FrameConfig, {"run_id": "r", "fastlane_video_mode": "single"}, {})
    names = {"config": config, "context": SimpleNamespace(run_dir=tmp_path, emitter=None)}
    exec(FRAMES, names)
    env = names["env"]
    # CartPole itself needs pygame to render, which only the workers' environments have.
    monkeypatch.setattr(env.unwrapped, "render", lambda: np.zeros((2, 2, 3), np.uint8))
    env.reset(seed=1)
    assert (tmp_path / "main.ring").exists()
    env.close()
