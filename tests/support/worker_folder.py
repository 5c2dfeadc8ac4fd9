"""A worker in its own environment, built from its lock as the platform builds it, and ways to use it in a folder."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

WORKERS = Path(__file__).parents[2] / "workers"


def build(worker, profile, home):
    """Build an environment as the platform does, cached outside the checkout by the hash of its lock."""
    command = [sys.executable, "-m", "mosaic_services.environments", worker, profile, "--home", str(home)]
    built = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert built.returncode == 0, built.stdout + built.stderr
    return json.loads(built.stdout.splitlines()[-1])


class WorkerFolder:
    """Runs a worker, or code beside it, in a folder."""

    def __init__(self, worker, environment, folder, deadline_s=280):
        self.module = f"{worker}_worker.cli"
        self.python = environment["python"]
        self.folder = folder
        self.deadline_s = deadline_s
        ours = ("MOSAIC_", "PYTHON", "RAY_")
        clean = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
        settings = tomllib.loads((WORKERS / f"{worker}_worker" / "profiles.toml").read_text())["default"]["env"]
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
            timeout=self.deadline_s,
        )

    def command(self, config, *arguments):
        """The command line that runs a config."""
        return [self.python, "-m", self.module, "--config", self.write(config), *arguments]

    def run(self, code=0, **config):
        """Run a config to its end; return its events."""
        done = self._done(self.command(config))
        assert done.returncode == code, done.stderr
        self.log = done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def talk(self, *requests, code=0, **config):
        """Send requests in interactive mode; return the answers."""
        lines = "".join(json.dumps(request) + "\n" for request in requests)
        done = self._done(self.command(config, "--interactive"), stdin=lines)
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
            process = subprocess.Popen(self.command(config), stdout=out, stderr=log, cwd=self.folder, env=self.environ)
            try:
                end = time.monotonic() + self.deadline_s
                while f'"event":"{event}"' not in journal.read_text():
                    assert time.monotonic() < end, "the event did not come in time"
                    assert process.poll() is None, (self.folder / "log.txt").read_text()
                    time.sleep(0.01)
                process.send_signal(number)
                code = process.wait(timeout=self.deadline_s)
            finally:
                process.kill()
                process.wait()
        return code, [json.loads(line) for line in journal.read_text().splitlines()]

    def write(self, config):
        """Write a config file."""
        path = self.folder / "worker.json"
        path.write_text(json.dumps({"run_id": "r1", **config}))
        return path
