"""The library that runs a stack: back-off, locks, processes that are left over."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading

from mosaic_services.home import StackHome
from mosaic_services.stack import leftovers
from mosaic_services.stack.backoff import Backoff
from mosaic_services.stack.locks import holder, holders


def test_backoff_doubles_up_to_its_limit_and_is_reset_by_a_long_life():
    backoff = Backoff(0.2, 5.0)
    assert [backoff.delay(1) for _ in range(7)] == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0]
    assert backoff.delay(31) == 0.2
    assert backoff.delay(1) == 0.4


def test_lock_of_a_dead_process_is_held_by_nobody(tmp_path):
    home = StackHome.find(tmp_path)
    assert holders(home) == {}
    with home.lock("up"):
        assert holder(tmp_path / "up.lock") == os.getpid()
        assert holders(home) == {"up": os.getpid()}
    assert (tmp_path / "up.lock").read_text() == str(os.getpid())
    assert holders(home) == {}


def test_a_look_at_a_lock_does_not_refuse_a_service_that_starts(tmp_path):
    path = tmp_path / "scheduler.lock"
    path.touch()
    with path.open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        timer = threading.Timer(0.2, lambda: fcntl.flock(looking, fcntl.LOCK_UN))
        timer.start()
        with StackHome.find(tmp_path).lock("scheduler"):
            assert holders(StackHome.find(tmp_path)) == {"scheduler": os.getpid()}
        timer.join()


def test_what_is_left_of_runs_is_found_told_and_killed(tmp_path):
    """One run host that has not written `host.json` yet, and one process that only carries the mark."""
    home = StackHome.find(tmp_path / "home")
    folder = home.runs / "some-run" / "1"
    folder.mkdir(parents=True)
    (home.path / "active").mkdir()
    (home.path / "active" / "some-run.1").touch()
    script = tmp_path / "run_host.py"
    script.write_text("import time; time.sleep(100)")
    host = subprocess.Popen([sys.executable, str(script), str(folder)])
    child = subprocess.Popen(["sleep", "100"], env={**os.environ, "MOSAIC_ATTEMPT_MARK": str(folder)})
    stranger = subprocess.Popen(["sleep", "100"], env={**os.environ, "MOSAIC_ATTEMPT_MARK": f"{folder}0"})
    try:
        assert leftovers.alive(home) == {"some-run": host.pid}
        assert leftovers.strays(home) == {child.pid}
        assert leftovers.terminate(home) == 1
        assert host.wait(10) == -15
        assert json.loads((folder / "stop.json").read_text()) == {"reason": "mosaic up was stopped"}
        host = subprocess.Popen([sys.executable, str(script), str(folder)])
        assert leftovers.kill(home) == (1, 1)
        assert (host.wait(10), child.wait(10)) == (-9, -9)
        assert (leftovers.alive(home), leftovers.strays(home), stranger.poll()) == ({}, set(), None)
    finally:
        for each in (host, child, stranger):
            each.kill()
            each.wait()
