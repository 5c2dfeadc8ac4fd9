"""A worker whose journal and log are on a full disk waits and loses nothing but printed output."""

import os
import subprocess
import time
from pathlib import Path

import pytest
from small_disk import mounted

EPISODES = 5_000


@pytest.fixture
def disk(tmp_path):
    yield from mounted(tmp_path / "disk", "1m")


def free(folder):
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def pauses(pid):
    """Return the voluntary context switches of a process, which grow with every sleep."""
    (line,) = [
        line
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if line.startswith("voluntary_ctxt_switches")
    ]
    return int(line.split()[1])


def wait_until(process, condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert process.poll() is None, f"the worker ended with {process.returncode}"
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_full_disk_is_waited_out_and_prints_do_no_harm(site, disk, make_tiny):
    tiny = make_tiny(site, disk)
    process = tiny.start("--config", tiny.config(mode="chatty", episodes=EPISODES))
    wait_until(process, lambda: free(disk) == 0)
    before = pauses(process.pid)
    wait_until(process, lambda: pauses(process.pid) >= before + 3)
    subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
    assert process.wait(60) == 0
    episodes = [event["episode"] for event in tiny.events() if event["event"] == "episode"]
    assert episodes == list(range(EPISODES))
    assert tiny.events()[-1]["event"] == "run_completed"
