"""Logging must not stop what it reports on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

LOG_A_LOT = """
import structlog
from mosaic_bus.logs import configure_logging
configure_logging("test")
for _ in range(100):
    structlog.get_logger().info("a line", reason="x" * 200)
print("still here")
"""


def test_full_disk_below_stderr_does_not_stop_a_service():
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([sys.executable, "-c", LOG_A_LOT], stdout=subprocess.PIPE, stderr=full, check=False)
    assert done.stdout == b"still here\n"


@pytest.mark.parametrize("word", ["a line", '"service": "test"', '"level": "info"'])
def test_lines_are_json_with_service_and_level(word):
    done = subprocess.run([sys.executable, "-c", LOG_A_LOT], capture_output=True, text=True, check=True)
    assert len(done.stderr.splitlines()) == 100
    assert word in done.stderr.splitlines()[0]
