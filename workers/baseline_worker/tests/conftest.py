"""Fixtures that build the default profile from its lock, as the platform does, and run the worker in it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

DEADLINE_S = 280


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    """Build the default profile as the platform does; the cache key is the hash of the lock."""
    home = tmp_path_factory.mktemp("home")
    command = [sys.executable, "-m", "mosaic_services.environments", "baseline", "default", "--home", str(home)]
    built = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert built.returncode == 0, built.stdout + built.stderr
    return json.loads(built.stdout.splitlines()[-1])


@pytest.fixture(scope="session")
def python(environment):
    return Path(environment["python"])


@pytest.fixture(scope="session")
def site(environment):
    return Path(environment["site"])


class Baseline:
    """Starts the worker in its own folder."""

    def __init__(self, python, site, folder):
        self.python = python
        self.folder = folder
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("MOSAIC_", "PYTHON"))}
        self.environ = {**clean, "PYTHONPATH": str(site), "SDL_VIDEODRIVER": "dummy"}

    def module(self, name, *arguments, stdin=None):
        return subprocess.run(
            [self.python, "-m", name, *map(str, arguments)],
            input=stdin,
            cwd=self.folder,
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )

    def run(self, code=0, **config):
        """Run a config; return the events, grouped by name."""
        done = self._start(config)
        assert done.returncode == code, done.stderr
        events = [json.loads(line) for line in done.stdout.splitlines()]
        return {name: [e for e in events if e["event"] == name] for name in {e["event"] for e in events}}

    def talk(self, *requests, **config):
        """Send requests in interactive mode; return the answers."""
        done = self._start(config, "--interactive", stdin="".join(json.dumps(request) + "\n" for request in requests))
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def _start(self, config, *arguments, stdin=None):
        path = self.folder / "worker.json"
        path.write_text(json.dumps({"run_id": "r1", **config}))
        return self.module("baseline_worker.cli", "--config", path, *arguments, stdin=stdin)


@pytest.fixture
def baseline(python, site, tmp_path):
    return Baseline(python, site, tmp_path)
