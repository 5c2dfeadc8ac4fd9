"""The worker's environment, built from its lock as the platform builds it, and ways to use it there."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

DEADLINE_S = 800
WORKER = Path(__file__).parents[1]


class RLlib:
    """Runs the worker, or code beside it, in a folder."""

    def __init__(self, environment, folder):
        self.python = environment["python"]
        self.folder = folder
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("MOSAIC_", "PYTHON", "RAY_"))}
        settings = tomllib.loads((WORKER / "profiles.toml").read_text())["default"]["env"]
        path = os.pathsep.join((environment["site"], str(folder)))
        self.environ = {**clean, **settings, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}

    def _done(self, command, stdin=None):
        return subprocess.run(
            command,
            input=stdin,
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )

    def run(self, code=0, **config):
        """Run a config to its end; return its events."""
        done = self._done([self.python, "-m", "ray_worker.cli", "--config", self.write(config)])
        assert done.returncode == code, done.stderr
        self.log = done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def talk(self, *requests, code=0, **config):
        """Send requests in interactive mode; return the answers."""
        lines = "".join(json.dumps(request) + "\n" for request in requests)
        command = [self.python, "-m", "ray_worker.cli", "--config", self.write(config), "--interactive"]
        done = self._done(command, stdin=lines)
        assert done.returncode == code, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def says(self, code, *arguments):
        """Run Python code in the environment; return the JSON that it prints last."""
        done = self._done([self.python, "-c", code, *map(str, arguments)])
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def stop_after(self, event, number=signal.SIGTERM, **config):
        """Run a config until it writes an event, send a signal, and return the exit code and all events."""
        journal = self.folder / "journal.jsonl"
        with journal.open("w") as out, (self.folder / "log.txt").open("w") as log:
            command = [self.python, "-m", "ray_worker.cli", "--config", self.write(config)]
            process = subprocess.Popen(command, stdout=out, stderr=log, cwd=self.folder, env=self.environ)
            try:
                end = time.monotonic() + DEADLINE_S
                while f'"event":"{event}"' not in journal.read_text():
                    assert time.monotonic() < end, "the event did not come in time"
                    assert process.poll() is None, (self.folder / "log.txt").read_text()
                    time.sleep(0.01)
                process.send_signal(number)
                code = process.wait(timeout=DEADLINE_S)
            finally:
                process.kill()
                process.wait()
        return code, [json.loads(line) for line in journal.read_text().splitlines()]

    def write(self, config):
        """Write a config file."""
        path = self.folder / "worker.json"
        path.write_text(json.dumps({"run_id": "r1", **config}))
        return path


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    """Builds the environment of a worker as the platform does, cached outside the checkout by the hash of its lock."""
    home = tmp_path_factory.mktemp("home")

    def _build(worker, profile):
        command = [sys.executable, "-m", "mosaic_services.environments", worker, profile, "--home", str(home)]
        built = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
        assert built.returncode == 0, built.stdout + built.stderr
        return json.loads(built.stdout.splitlines()[-1])

    return _build


@pytest.fixture(scope="session")
def environment(build):
    """The worker's environment."""
    return build("ray", "default")


@pytest.fixture(scope="session")
def make_rllib(environment):
    """Puts the worker in a folder."""
    return lambda folder: RLlib(environment, folder)


@pytest.fixture
def rllib(make_rllib, tmp_path):
    """The worker in the test's folder."""
    return make_rllib(tmp_path)
