"""Fixtures that start a real broker in a separate process."""

import contextlib
import os
import resource
import signal
import subprocess
import sys

import pytest

from mosaic_bus import Home


class BrokerProcess:
    """Runs `python -m mosaic_services.broker`; can kill and restart it."""

    def __init__(self, folder, *arguments):
        self.home = Home.find(folder)
        self.home.create()
        self.arguments = arguments
        self.process = None

    @property
    def address(self):
        return self.home.address(self.arguments[1] if self.arguments else None)

    @property
    def log_file(self):
        return self.home.path / "broker.log"

    def start(self, files=None):
        """Start the broker; `files` limits its open file descriptors."""
        environ = {key: value for key, value in os.environ.items() if not key.startswith("MOSAIC_")}
        command = [sys.executable, "-m", "mosaic_services.broker", "--home", str(self.home.path), *self.arguments]
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(command, stderr=log, env=environ)
        if files is not None:
            resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE, (files, files))
        return self

    def run_second(self):
        """Run a second broker in the same home and return the completed process."""
        command = [sys.executable, "-m", "mosaic_services.broker", "--home", str(self.home.path), *self.arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
        return self.process.returncode


@pytest.fixture(autouse=True)
def _no_stack_of_the_user(monkeypatch):
    monkeypatch.delenv("MOSAIC_BUS", raising=False)
    monkeypatch.delenv("MOSAIC_HOME", raising=False)


@pytest.fixture
def start_broker(tmp_path):
    started = []

    def start(*arguments, folder=tmp_path / "home", files=None):
        started.append(BrokerProcess(folder, *arguments).start(files))
        return started[-1]

    yield start
    for each in started:
        with contextlib.suppress(ProcessLookupError):
            each.end()


@pytest.fixture
def broker(start_broker):
    return start_broker()


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory):
    """One broker for all tests that neither kill nor overload it."""
    process = BrokerProcess(tmp_path_factory.mktemp("shared")).start()
    yield process
    process.end()
