"""A signal for a worker goes to the worker of a run host, and only if the worker handles it."""

from __future__ import annotations

import signal
import subprocess
import sys

from mosaic_services.attempt_folder.proc import identity
from mosaic_services.supervisor import run_hosts

WORKER = """
import signal, sys
signal.signal(signal.SIGUSR1, lambda *_: print("paused", flush=True))
print("ready", flush=True)
for _ in sys.stdin:
    pass
"""
# Starts the worker in a session of its own, as a run host does, and a child that is no worker.
HOST = f"""
import subprocess, sys
helper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
subprocess.run([sys.executable, "-c", {WORKER!r}], start_new_session=True)
helper.kill()
helper.wait()
"""


def test_worker_gets_the_signal_that_it_handles_and_no_other():
    command = [sys.executable, "-c", HOST]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        host = identity(process.pid)
        assert process.stdout.readline() == "ready\n"
        assert run_hosts.signal_worker(host, signal.SIGUSR1)
        assert process.stdout.readline() == "paused\n"
        assert not run_hosts.signal_worker(host, signal.SIGUSR2), "it would end the worker"
        process.stdin.close()
        assert process.wait(timeout=60) == 0
    assert not run_hosts.signal_worker(host, signal.SIGUSR1)
