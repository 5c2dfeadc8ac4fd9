"""The Python shown in the README runs as it stands, against a real stack."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from stack import ROOT


@pytest.mark.slow
def test_python_of_the_readme_runs(stack):
    config = {"agent": "random", "env_id": "CartPole-v1", "episodes": 20, "seed": 1}
    run = stack.submit(worker="baseline", config=config)
    assert stack.wait_final(run).state == "succeeded"
    stack.wait_stored(run)
    still_talking = stack.submit(config={"events": 4000, "rate": 1000})
    stack.wait_state(still_talking, "running")
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    environ = {**os.environ, "MOSAIC_HOME": str(stack.home.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert f"run.{still_talking}.telemetry." in done.stdout
