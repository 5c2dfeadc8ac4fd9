"""`mosaic workers` with a worker that has algorithms and takes a checkout: installed, changed, described on the bus."""

from __future__ import annotations

import json
import shutil
import signal
from typing import TYPE_CHECKING

import psutil
import pytest
from mosaic_cli import Cli
from stack import HOST, STRESS, Stack, wait_until

from mosaic_bus.commands import Describe
from mosaic_services.cli.workers.description_page import type_of
from mosaic_services.environments import build, read_recipe

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

PROFILES = """
[default]
summary = "takes a checkout"
upstream = "lib/algo.py"
python = ">=3.11,<3.14"

[plain]
lock = "locks/default.lock"
python = ">=3.11,<3.14"
"""
ALGORITHMS = """


def _algorithms():
    import os
    from pathlib import Path

    from mosaic_worker.metadata import AlgorithmCard, Parameter

    found = os.environ.get("MOSAIC_UPSTREAM")
    if not found:
        return [AlgorithmCard(name="dqn", family="Q", actions="discrete", runs=False, needs="a checkout")]
    rate = float((Path(found) / "lib" / "algo.py").read_text().partition("=")[2])
    rate = Parameter(name="rate", type="float", default=rate, help="how fast it learns")
    return [AlgorithmCard(name="dqn", family="Q", actions="discrete", runs=True, source="lib 1", parameters=[rate])]
"""


@pytest.fixture
def worker(tmp_path: Path) -> Path:
    """The stress worker with an algorithm, which it finds in a checkout; its virtualenv is that of all tests."""
    folder = tmp_path / "stress_worker"
    shutil.copytree(STRESS, folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    (folder / "profiles.toml").write_text(PROFILES)
    init = folder / "stress_worker" / "__init__.py"
    text = init.read_text().replace("example_config=", "algorithms=_algorithms,\n        example_config=")
    init.write_text(text + ALGORITHMS)
    return folder


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "library"
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "algo.py").write_text("RATE = 0.5\n")
    return folder


@pytest.fixture
def mosaic(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "home")


def listed(mosaic: Cli) -> dict[str, dict[str, str]]:
    workers = mosaic.json("workers", "list")["workers"]
    return {each["profile"]: each for each in workers if each["worker"] == "stress"}


def test_checkout_is_given_shown_edited_and_taken_back(mosaic: Cli, worker: Path, checkout: Path):
    mosaic("workers", "install", str(worker), timeout=300)
    shown = mosaic("workers", "describe", "stress").stdout
    assert "ALGORITHMS" in shown
    assert "a checkout" in shown

    said = mosaic("workers", "install", "stress", "--upstream", str(checkout)).stdout
    assert f"checkout: {checkout}" in said
    assert {profile: each["upstream"] for profile, each in listed(mosaic).items()} == {
        "default": str(checkout),
        "plain": "",
    }
    shown = "".join(mosaic("workers", "list").stdout.split())  # a long path is broken over several lines
    assert f"checkout:{checkout}" in shown
    shown = mosaic("workers", "describe", "stress").stdout
    assert f"checkout: {checkout}" in shown
    assert "✓ lib 1" in shown
    assert "mosaic workers describe stress --algo NAME" in shown
    lines = mosaic("workers", "describe", "stress", "--algo", "dqn").stdout.splitlines()
    assert lines[:2] == ["dqn  Q, discrete actions", "from lib 1"]
    assert lines[3].split() == ["rate", "float", "0.5", "how", "fast", "it", "learns"]
    found = mosaic.json("workers", "describe", "stress")
    assert (found["upstream"], found["algorithms"][0]["parameters"][0]["default"]) == (str(checkout), 0.5)

    # Edited: it has to be described anew, and then says what is there now.
    (checkout / "lib" / "algo.py").write_text("RATE = 0.25\n")
    assert listed(mosaic)["default"]["status"] == "available"
    mosaic("workers", "install", "stress")
    card = mosaic.json("workers", "describe", "stress", "--algo", "dqn")
    assert card["parameters"] == [{"name": "rate", "type": "float", "default": 0.25, "help": "how fast it learns"}]

    # Gone: the profile says so, and can do without it again.
    shutil.rmtree(checkout)
    gone = listed(mosaic)["default"]
    assert (gone["status"], "is not a folder" in gone["detail"]) == ("impossible", True)
    mosaic("workers", "install", "stress", "--no-upstream")
    assert listed(mosaic)["default"]["upstream"] == ""
    assert mosaic.json("workers", "describe", "stress")["algorithms"][0]["needs"] == "a checkout"


def test_each_wrong_checkout_and_algorithm_is_named(mosaic: Cli, worker: Path, checkout: Path, tmp_path: Path):
    mosaic("workers", "install", str(worker), timeout=300)
    for arguments, said in [
        (["--upstream", str(tmp_path / "nowhere")], f"{tmp_path}/nowhere is not a folder"),
        (["--upstream", str(worker)], f"{worker} has no lib/algo.py"),
        (["--upstream", (tmp_path / "nowhere").as_uri()], f"cannot clone file://{tmp_path}/nowhere: "),
        (["--upstream", str(checkout), "--no-upstream"], "--upstream and --no-upstream exclude each other"),
        (["--upstream", str(checkout), "--profile", "plain"], "stress/plain takes no checkout"),
    ]:
        error = mosaic("workers", "install", "stress", *arguments, code=2).stderr
        assert said in error, error
    shown = mosaic("workers", "describe", "stress", "--algo", "dqn").stdout
    assert "does not run here: a checkout" in shown
    error = mosaic("workers", "describe", "stress", "--algo", "dqnn", code=2).stderr
    assert "worker stress has no algorithm 'dqnn'" in error
    assert "did you mean dqn?" in error
    # A checkout with which the worker cannot describe itself is not kept.
    (checkout / "lib" / "algo.py").write_text("RATE = fast\n")
    error = mosaic("workers", "install", "stress", "--upstream", str(checkout), code=1).stderr
    assert "describing stress failed: ValueError: could not convert string to float" in error
    assert listed(mosaic)["default"]["upstream"] == ""


def test_algorithms_are_described_on_the_bus_and_are_not_part_of_a_hosts_state(
    mosaic: Cli, worker: Path, checkout: Path
):
    mosaic("workers", "install", str(worker), "--upstream", str(checkout), timeout=300)
    stack = Stack(mosaic.home, environ={"MOSAIC_WORKERS": str(worker)})
    try:
        for service in ("broker", "supervisor"):
            stack.start(service)
            stack.wait_for(service)
        found = stack.bus.request(f"supervisor.{HOST}", Describe(worker="stress"))
        assert [(card["name"], card["runs"], card["source"]) for card in found.algorithms] == [("dqn", True, "lib 1")]
        states = stack.bus.listen(f"state.host.{HOST}.", timeout=30)
        text = json.dumps(next(iter(states)).payload)
        states.close()
        assert '"stress"' in text
        assert "how fast it learns" not in text
    finally:
        stack.close()


def processes_of(folder: Path) -> list[psutil.Process]:
    """Those that were started with a file in a folder."""
    return [
        each
        for each in psutil.process_iter(["cmdline"])
        if any(str(folder) in word for word in each.info["cmdline"] or ())
    ]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_check_that_is_told_to_stop_leaves_no_process_and_no_folder(
    mosaic: Cli, tmp_path: Path, number: int, code: int
):
    build(read_recipe(STRESS), "default", lambda _step, _percent: None)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    mosaic.env |= {"MOSAIC_WORKERS": str(STRESS), "TMPDIR": str(scratch)}
    checking = mosaic.start("workers", "check", "stress")
    wait_until("a worker is being checked", lambda: processes_of(scratch))
    checking.send_signal(number)
    output, errors = checking.communicate(timeout=60)
    assert checking.returncode == code, errors
    assert "Traceback" not in output + errors
    assert processes_of(scratch) == []
    assert list(scratch.iterdir()) == []


def test_types_of_fields_read_like_words():
    schema = {"$defs": {"Kind": {"enum": ["a", "b"]}}}
    assert type_of({"$ref": "#/$defs/Kind"}, schema) == "a | b"
    assert type_of({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "null"}]}, schema) == "integer ≥ 0 | null"
    assert type_of({"type": "array", "items": {"type": "number"}}, schema) == "list of number"
