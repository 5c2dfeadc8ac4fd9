"""The kit works beside the numpy of older libraries: `.venv` has a new one, so this builds an environment."""

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
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.version_info >= (3, 12), reason="numpy 1.23 has no wheels for this Python")
def test_kit_installs_and_emits_beside_numpy_1_23(tmp_path):
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*install, "--only-binary", ":all:", OLD_NUMPY, "pydantic>=2.8"], check=True)
    environ = {key: value for key, value in os.environ.items() if not key.startswith("COVERAGE")}
    done = subprocess.run(
        [python, "-c", EMIT], env={**environ, "PYTHONPATH": str(KIT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    step, scalars = [json.loads(line) for line in done.stdout.splitlines()]
    assert (step["step"], step["reward"], step["terminated"], step["action"]) == (3, 0.5, True, [0, 1, 2])
    assert (step["info"], scalars["values"]) == ({"x": "NaN"}, {"loss": "Infinity"})
