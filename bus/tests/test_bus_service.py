"""A service process: what `serve` sets up at start-up."""

import subprocess
import sys


def test_service_asks_for_more_descriptors_than_the_usual_1024():
    code = """
import resource
from mosaic_bus.errors import BusError
from mosaic_bus.service import serve

hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))

def make():
    raise BusError("no service")

assert serve(make, "test") == 2
soft, now = resource.getrlimit(resource.RLIMIT_NOFILE)
assert now == hard and (soft == hard or soft > 4096), (soft, now)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
