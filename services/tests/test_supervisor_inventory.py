"""What a host offers. There is no GPU here, so a fake module stands for NVML."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import yaml
from stack import ROOT

from mosaic_bus.messages import Gpu, Resources
from mosaic_services.host_config import HostConfig, HostConfigError
from mosaic_services.supervisor.inventory import take_inventory

if TYPE_CHECKING:
    from pathlib import Path

# Stands for the package nvidia-ml-py and a driver with three GPUs; `broken` in the environment makes the driver fail.
FAKE_NVML = """
import os
class NVMLError(Exception):
    pass
def nvmlInit():
    if os.environ.get("FAKE_NVML") == "broken":
        raise NVMLError("Driver Not Loaded")
def nvmlShutdown():
    pass
def nvmlDeviceGetCount():
    return 3
def nvmlDeviceGetHandleByIndex(index):
    return index
def nvmlDeviceGetUUID(handle):
    return f"GPU-{'abc'[handle]}0de-77"
def nvmlDeviceGetName(handle):
    return b"Fake A100" if handle else "Fake T4"  # older versions of the package answer with bytes
class Memory:
    total = 40 * 2**30
def nvmlDeviceGetMemoryInfo(handle):
    return Memory
"""
ASK = """
import json, os
from mosaic_services.host_config import HostConfig
from mosaic_services.supervisor.inventory import take_inventory
found = take_inventory(HostConfig(), "here", os.environ)
print(json.dumps({"gpus": [each.model_dump() for each in found.gpus], "tags": found.tags, "total": found.total.gpus}))
"""


def ask(folder: Path, **environ: str) -> tuple[dict, str]:
    """Take the inventory in a process of its own, with the fake NVML on its path."""
    (folder / "pynvml.py").write_text(FAKE_NVML)
    clean = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
    code = f"from mosaic_bus.logs import configure_logging; configure_logging('x')\n{ASK}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**clean, "PYTHONPATH": str(folder), **environ},
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout), done.stderr


def test_gpus_are_found_by_nvml(tmp_path):
    found, _ = ask(tmp_path)
    assert found["gpus"] == [
        {"id": "0", "name": "Fake T4", "memory_mb": 40960},
        {"id": "1", "name": "Fake A100", "memory_mb": 40960},
        {"id": "2", "name": "Fake A100", "memory_mb": 40960},
    ]
    assert found["total"] == 3
    assert found["tags"] == ["host:here", "gpu"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("visible", "ids"),
    [
        ("2,0", ["2", "0"]),
        ("", []),
        ("-1", []),
        ("1,9,0", ["1"]),
        ("GPU-b0de-77, GPU-c", ["GPU-b0de-77", "GPU-c"]),
        ("GPU-", []),
        ("1,1,2", ["1"]),
    ],
)
def test_gpus_that_the_supervisor_may_not_see_are_not_there(tmp_path, visible, ids):
    found, _ = ask(tmp_path, CUDA_VISIBLE_DEVICES=visible)
    assert [each["id"] for each in found["gpus"]] == ids
    assert found["tags"] == ["host:here", *(["gpu"] if ids else [])]


def test_driver_that_fails_means_no_gpus_and_is_said_once(tmp_path):
    found, log = ask(tmp_path, FAKE_NVML="broken")
    assert (found["gpus"], found["total"]) == ([], 0)
    assert log.count("Driver Not Loaded") == 1


def test_machine_without_nvml_has_no_gpus_and_says_how_to_change_that(tmp_path):
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "pynvml.py").write_text("raise ImportError('not installed')")
    found, log = ask(tmp_path, PYTHONPATH=str(blocked))
    assert found["gpus"] == []
    assert log.count("nvidia-ml-py is not installed") == 1


def take(environ: dict[str, str] | None = None, **fields):
    return take_inventory(HostConfig.make(fields, "test"), "here", environ or {})


def test_gpus_can_be_declared():
    found = take(gpus=2, tags=["fast"], host="big", cpus=4, memory_mb=100)
    assert [each.id for each in found.gpus] == ["0", "1"]
    assert found.total == Resources(cpus=4, memory_mb=100, gpus=2)
    assert found.tags == ("host:big", "gpu", "fast")
    one = {"id": 3, "name": "T4", "memory_mb": 16000}
    assert take(gpus=[one]).gpus == (Gpu(id="3", name="T4", memory_mb=16000),)
    assert take(gpus=0).tags == ("host:here",)


def test_declared_number_means_those_that_the_supervisor_may_see():
    found = take({"CUDA_VISIBLE_DEVICES": "3,5,7"}, gpus=2)
    assert [each.id for each in found.gpus] == ["3", "5"]
    with pytest.raises(HostConfigError, match="4 are declared, and CUDA_VISIBLE_DEVICES=3,5 allows 2"):
        take({"CUDA_VISIBLE_DEVICES": "3,5"}, gpus=4)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"gpu": 2}, ["'gpu'", "did you mean gpus?"]),
        ({"colour": 2}, ["'colour'", "host, cpus, memory_mb, gpus, tags"]),
        ({"cpus": -1}, ["cpus", "-1", "greater than 0"]),
        ({"cpus": "many"}, ["cpus", "'many'", "number"]),
        ({"cpus": 1e9}, ["cpus", "4096"]),
        ({"memory_mb": 0}, ["memory_mb", "0"]),
        ({"memory_mb": True}, ["memory_mb", "True", "whole number"]),
        ({"gpus": -1}, ["gpus", "-1", "0 to 1024"]),
        ({"gpus": 1.5}, ["gpus", "1.5", "a list of {id, name, memory_mb}"]),
        ({"gpus": True}, ["gpus", "True"]),
        ({"gpus": "0,1"}, ["gpus", "'0,1'", "a list of"]),
        ({"gpus": 2000}, ["gpus", "2000", "1024"]),
        ({"gpus": [{"id": 0}, {"id": "0"}]}, ["gpus", "once", "0, 0"]),
        ({"gpus": [{"name": "T4"}]}, ["gpus", "id"]),
        ({"gpus": [{"id": "0,1"}]}, ["gpus", "'0,1'"]),
        ({"gpus": [{"id": 0, "memory": 3}]}, ["gpus", "memory", "{id, name, memory_mb}"]),
        ({"gpus": [{"id": 0, "memory_mb": -3}]}, ["gpus", "memory_mb", "-3"]),
        ({"gpus": [0, 1]}, ["gpus", "{id, name, memory_mb}"]),
        ({"tags": ["Fast Disk"]}, ["tags", "'Fast Disk'", "lower-case"]),
        ({"tags": ["!no"]}, ["tags", "'!no'"]),
        ({"tags": ["host:other"]}, ["tags", "host:other", "automatically"]),
        ({"tags": "fast"}, ["tags", "'fast'"]),
        ({"host": "No Host"}, ["host", "'No Host'", "dashes"]),
    ],
)
def test_absurd_description_is_refused_by_name(fields, words):
    with pytest.raises(HostConfigError) as caught:
        HostConfig.make(fields, "some.yaml")
    assert str(caught.value).startswith("some.yaml: ")
    for word in words:
        assert word in str(caught.value)


def test_what_is_said_on_the_command_line_wins_over_the_file(tmp_path):
    path = tmp_path / "stack.yaml"
    path.write_text(yaml.safe_dump({"host": "a", "cpus": 2, "gpus": 4, "tags": ["x", "y"]}))
    config = HostConfig.read(path).replaced_by(
        {"host": None, "cpus": 8.0, "gpus": 0, "memory_mb": None, "tags": ["z"]}, "command line"
    )
    assert config == HostConfig(host="a", cpus=8.0, gpus=0, tags=("z",))
    assert HostConfig.read(path).replaced_by({"cpus": None, "tags": []}, "x") == HostConfig.read(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [("- 1\n", "a map of fields"), ("cpus: [", "not YAML"), ("cpus: -1", "cpus"), ("\x00", "not YAML")],
)
def test_file_that_cannot_be_used_is_named(tmp_path, text, words):
    path = tmp_path / "stack.yaml"
    path.write_text(text)
    with pytest.raises(HostConfigError, match=words) as caught:
        HostConfig.read(path)
    assert str(path) in str(caught.value)
    with pytest.raises(HostConfigError, match="no such file"):
        HostConfig.read(tmp_path / "nowhere.yaml")


def test_the_example_that_we_ship_can_be_used_with_its_comments_and_without():
    path = ROOT / "configs" / "stacks" / "workstation.yaml"
    assert HostConfig.read(path).gpus == 0
    text = path.read_text().replace("gpus: 0 ", "# gpus: 0 ").replace("# gpus:     ", "gpus:     ")
    text = text.replace("#   - {id", "  - {id")
    declared = HostConfig.make(yaml.safe_load(text), "example").gpus
    assert [each.id for each in declared] == ["0", "1"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--gpus", "-2"], "command line: gpus"),
        (["--tag", "A b"], "tag 'A b'"),
        (["--cpus", "0"], "command line: cpus"),
        (["--config", "/nowhere.yaml"], "/nowhere.yaml: no such file"),
    ],
)
@pytest.mark.slow
def test_supervisor_refuses_absurd_options_before_it_starts(tmp_path, options, words):
    done = subprocess.run(
        [sys.executable, "-m", "mosaic_services.supervisor", "--home", str(tmp_path / "home"), *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert words in done.stderr
    assert not (tmp_path / "home").exists()
