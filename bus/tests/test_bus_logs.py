"""Logging: a failing log must not stop a service, and a client imports structlog only to log."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mosaic_bus.logs import FirstTime

LOG_A_LOT = """
import structlog
from mosaic_bus.logs import configure_logging
configure_logging("test")
for _ in range(100):
    structlog.get_logger().info("a line", reason="x" * 200)
print("still here")
"""


def test_stderr_on_a_full_disk_does_not_stop_a_service():
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run([sys.executable, "-c", LOG_A_LOT], stdout=subprocess.PIPE, stderr=full, check=False)
    assert done.stdout == b"still here\n"


@pytest.mark.parametrize("word", ["a line", '"service": "test"', '"level": "info"'])
def test_lines_are_json_with_service_and_level(word):
    done = subprocess.run([sys.executable, "-c", LOG_A_LOT], capture_output=True, text=True, check=True)
    assert len(done.stderr.splitlines()) == 100
    assert word in done.stderr.splitlines()[0]


QUIET_UNTIL_ASKED = """
import sys
from mosaic_bus.logs import Logger, log_to_stderr
log_to_stderr()
log = Logger()
sys.stderr = sys.stdout  # as rich does while it draws
assert "structlog" not in sys.modules
log.warning("of a client", reason="x")
import structlog.dev
assert structlog.dev.rich is not None, "who uses structlog beside us finds it as ever"
"""


def test_client_logs_to_stderr_and_imports_structlog_only_then():
    done = subprocess.run([sys.executable, "-c", QUIET_UNTIL_ASKED], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert "of a client" in done.stderr


RICH_IS_BACK = """
from mosaic_bus.logs import configure_logging
configure_logging("test")
import rich.console
print(rich.console.Console().width > 0)
"""


def test_rich_can_be_imported_after_logging_was_configured():
    done = subprocess.run([sys.executable, "-c", RICH_IS_BACK], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_first_time_is_true_once_per_key_and_remembers_a_limited_number():
    first_time = FirstTime(limit=2)
    assert [first_time(key) for key in "aabcba"] == [True, False, True, True, False, True]
