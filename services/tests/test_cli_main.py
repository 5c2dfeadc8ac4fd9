"""The front of the command line: help, bad usage, output that goes nowhere."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys

import pytest
from mosaic_cli import MOSAIC, Cli


def mosaic(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mosaic_services.cli", *arguments],
        env={**os.environ, "NO_COLOR": "1", **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_help_names_every_command_and_the_exit_codes():
    done = mosaic("--help", COLUMNS="100")
    assert done.returncode == 0
    for name in ("up", "down", "submit", "watch", "workers", "Exit codes"):
        assert name in done.stdout
    assert mosaic().returncode == 0
    assert mosaic("--version").stdout.startswith("mosaic ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sbmit"], "Did you mean 'submit'?"),
        (["run"], "did you mean: mosaic submit"),
        (["submit", "--priority", "high"], "must be a whole number"),
        (["runs", "--limit", "many"], "--limit"),
        (["runs", "--nonsense"], "--nonsense"),
        (["show"], "RUN"),
        (
            ["up", "--host", "No Host"],
            "command line: host: use lower-case letters, digits and dashes, at most 63, got 'No Host'",
        ),
        (["up", "--cpus", "0"], "command line: cpus: must be greater than 0, got 0.0"),
        (["up", "--gpus", "-1"], "command line: gpus: give a number from 0 to 1024, or a list"),
        (["up", "--tag", "Fast Disk"], "tag 'Fast Disk': use lower-case letters, digits and"),
        (["up", "--config", "/nowhere/stack.yaml"], "/nowhere/stack.yaml: no such file"),
        (["watch", "--json"], "--once"),
        (["--bus", "nonsense", "runs"], "bus address 'nonsense'"),
        (["workers", "describe", "no-such-worker"], "worker 'no-such-worker' is unknown"),
        (["workers", "install", "/no/such/folder"], "/no/such/folder/pyproject.toml is missing"),
    ],
)
def test_bad_usage_is_one_line_and_2(arguments, said, refusal):
    assert said in refusal(*arguments)


@pytest.mark.slow
def test_nothing_answers_at_an_address(tmp_path):
    done = mosaic("--bus", "tcp://127.0.0.1:1", "runs", "-v", MOSAIC_HOME=str(tmp_path))
    assert done.returncode == 3
    assert "no broker answers at tcp://127.0.0.1:1" in done.stderr
    assert "Traceback" in done.stderr  # asked for with -v


def test_workers_list_as_json(tmp_path):
    found = json.loads(mosaic("workers", "list", "--json", MOSAIC_HOME=str(tmp_path)).stdout)["workers"]
    assert [each["worker"] for each in found if each["profile"] == "default"][:2] == ["arena", "baseline"]


@pytest.mark.parametrize("command", [["up"], ["up", "--detach"], ["status"], ["down"]])
def test_a_home_that_is_a_file(tmp_path, command):
    (tmp_path / "home").touch()
    refused = Cli(tmp_path / "home")(*command, code=2)
    assert refused.stderr.startswith(f"error: {tmp_path / 'home'}")
    assert "defect" not in refused.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("redirection", "code", "said"),
    [("<&- >&-", 0, ""), (">/dev/full", 2, "error: No space left on device\n"), (">/dev/full --json", 2, "error: No")],
)
def test_output_that_goes_nowhere(tmp_path, redirection, code, said):
    line = f"{shlex.join(MOSAIC)} workers list {redirection}"
    done = subprocess.run(["sh", "-c", line], env=Cli(tmp_path).env, capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith(said)
    assert said or not done.stderr
