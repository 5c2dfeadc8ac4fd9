"""The kit works with the old numpy that some libraries pin; the test builds an environment for it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

KIT = Path(__file__).resolve().parents[1]
OLD_NUMPY = "numpy==1.23.5"
EMIT = """
import numpy as np
from mosaic_worker.emitter import Emitter
from mosaic_worker.manifest import Manifest

assert np.__version__.startswith("1.23."), np.__version__
emitter = Emitter(1)
info = {"x": np.float64("nan")}
emitter.step(np.int64(3), reward=np.float32(0.5), terminated=np.bool_(True), action=np.arange(3), info=info)
emitter.scalars(np.int32(4), {"loss": np.float32("inf")})
from mosaic_worker.frames.fastlane import FastLane, FastLaneSettings, RecordSettings
from pathlib import Path

class Env:
    render_mode = "rgb_array"
    def reset(self, seed=None):
        return 0, {}
    def step(self, action):
        return 0, np.float32(1.5), True, False, {}
    def render(self):
        return np.full((300, 500), 7, np.uint8)
    def close(self):
        pass

settings = FastLaneSettings(mode="grid", max_dim=100, interval_ms=1)
record = RecordSettings(best=True, max_dim=50)
lane = FastLane(settings, Path.cwd(), record=record, run_dir=Path.cwd(), emitter=emitter)
env = lane.wrap(Env())
env.reset(seed=4)
env.step(0)
env.close()
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info >= (3, 12), reason="numpy 1.23 has no wheels for this Python")
def test_kit_installs_and_emits_beside_numpy_1_23(tmp_path):
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "--only-binary", ":all:", OLD_NUMPY, "pydantic>=2.8"], check=True)
    environ = {key: value for key, value in os.environ.items() if not key.startswith("COVERAGE")}
    done = subprocess.run(
        [python, "-W", "error", "-c", EMIT],
        cwd=tmp_path,
        env={**environ, "PYTHONPATH": str(KIT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    step, scalars, video = [json.loads(line) for line in done.stdout.splitlines()]
    assert (step["step"], step["reward"], step["terminated"], step["action"]) == (3, 0.5, True, [0, 1, 2])
    assert (step["info"], scalars["values"]) == ({"x": "NaN"}, {"loss": "Infinity"})
    assert (video["path"], video["info"]["return"], video["info"]["seed"]) == ("videos/best.png", 1.5, 4)
    assert (tmp_path / "videos" / "best.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "main.ring").stat().st_size > 4 * 60 * 100 * 3
