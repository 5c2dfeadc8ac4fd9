"""The Python shown in README and protocol runs as it stands, against a real stack."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from stack import ROOT, Stack


def run_python_of(page: str, stack) -> str:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    environ = {**os.environ, "MOSAIC_HOME": str(stack.home.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_readme(stack):
    run = stack.submit(name="talks", config={"events": 8000, "rate": 500})  # long enough to be seen running
    stack.wait_state(run, "running")
    first, *rest = run_python_of("README.md", stack).splitlines()
    assert first == "talks running"
    assert rest[0].split() == ["step", "value", "low", "high", "time"]
    assert rest[-1] == "7999"


@pytest.mark.slow
def test_protocol(stack):
    run = stack.submit(config={"events": 2000, "rate": 400})
    stack.wait_state(run, "running")
    output = run_python_of("docs/protocol.md", stack)
    assert f"state.run.{run}. " in output
    assert f"summary.{run}. " in output
    assert "'state': 'succeeded'" in output


@pytest.mark.slow
def test_results(tmp_path):
    with Stack(tmp_path / "home", environ={"MOSAIC_WORKERS": ""}) as stack:
        output = run_python_of("docs/results.md", stack).splitlines()
    assert "step" in output[0]
    assert float(output[-1]) > 8  # the mean of five episodes of a random agent on CartPole
