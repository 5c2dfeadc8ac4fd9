"""The environment of the default profile, built from its lock as the platform builds it, and a way to use it."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).resolve().parents[1]
KIT = WORKER.parent / "kit"
LOCK = WORKER / "locks" / "default.lock"
DEADLINE_S = 100


def pip(python, *arguments):
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *map(str, arguments)]
    subprocess.run(command, check=True, timeout=600)


@pytest.fixture(scope="session")
def python(request):
    """A virtualenv from the lock; kept between sessions, under the hash of the lock."""
    name = hashlib.sha256(LOCK.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = request.config.cache.mkdir("baseline-worker") / name
    ready = folder / "ready"
    if not ready.exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=120)
        pip(folder / "bin" / "python", "--only-binary", ":all:", "-r", LOCK)
        ready.touch()
    return folder / "bin" / "python"


@pytest.fixture(scope="session")
def site(python, tmp_path_factory):
    """Kit and worker installed on top, into a folder of their own."""
    folder = tmp_path_factory.mktemp("baseline")
    ignore = shutil.ignore_patterns("tests", "build", "*.egg-info", "__pycache__", ".*")
    copies = [shutil.copytree(source, folder / source.name, ignore=ignore) for source in (KIT, WORKER)]
    pip(python, "--no-deps", "--target", folder / "site", *copies)
    return folder / "site"


class Baseline:
    """Starts the worker in a folder of its own."""

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
        """Run a config; return the events by name."""
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
