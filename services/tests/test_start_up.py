"""What a process imports before it does anything: the larger part of what `mosaic` and a stack take to start."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mosaic_services.stack.services import SERVICES

SERVICE = """
import sys
import mosaic_services.{name}.__main__
from mosaic_bus.logs import configure_logging
configure_logging("test")
print(*sys.modules)
"""
COMMAND = """
import sys
from mosaic_services.cli.main import main
sys.argv = ["mosaic", "runs", "--home", {home!r}]
assert main() == 3, "there is no stack"
print(*sys.modules)
"""


def imported_by(code: str) -> set[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {name.partition(".")[0] for name in done.stdout.split()}


@pytest.mark.parametrize("name", [row.name for row in SERVICES])
def test_service_starts_without_what_only_some_need(name):
    modules = imported_by(SERVICE.format(name=name))
    assert "structlog" in modules
    assert modules & {"rich", "pygments", "numpy", "PIL", "typer", "pyarrow", "optuna"} == set()


def test_command_starts_without_what_only_some_need(tmp_path):
    modules = imported_by(COMMAND.format(home=str(tmp_path)))
    assert "mosaic_bus" in modules
    assert modules & {"structlog", "pygments", "numpy", "PIL", "pyarrow", "optuna", "psutil"} == set()
