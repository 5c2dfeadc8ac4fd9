"""Fixtures that build the worker's profiles from their locks, as the platform does, and run the worker in them."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from functools import cache
from pathlib import Path

import pytest

DEADLINE_S = 280
WORKER = Path(__file__).parents[1]


@pytest.fixture(scope="session")
def environment(tmp_path_factory):
    """Return a function that builds a profile as the platform does; the cache key is the hash of the lock."""
    home = tmp_path_factory.mktemp("home")

    @cache
    def build(profile):
        command = [sys.executable, "-m", "mosaic_services.environments", "cleanrl", profile, "--home", str(home)]
        built = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
        assert built.returncode == 0, built.stdout + built.stderr
        return json.loads(built.stdout.splitlines()[-1])

    return build


REFUSALS = """
import json, os
from pathlib import Path
from cleanrl_worker import get_worker_metadata
from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.runtime import CleanRLWorkerRuntime, preflight
from mosaic_worker.config import parse_config
from mosaic_worker.context import RunContext
from mosaic_worker.emitter import Emitter
from mosaic_worker.errors import ConfigError
from mosaic_worker.stop import Stop
nowhere, said = os.open(os.devnull, os.O_WRONLY), []
for given in {configs!r}:
    try:
        config = parse_config(CleanRLWorkerConfig, {{"run_id": "r1", **given}}, {{}})
        plan = preflight(config)
        context = RunContext(get_worker_metadata(), config, Emitter(nowhere), Stop(), Path.cwd(), plan=plan)
        CleanRLWorkerRuntime(context).run()
        said.append("it ran")
    except ConfigError as error:
        said.append(str(error))
print(json.dumps(said))
"""


class CleanRL:
    """Starts the worker of one profile in its own folder."""

    def __init__(self, environment, folder, profile="default"):
        self.python = environment["python"]
        self.folder = folder
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("MOSAIC_", "PYTHON"))}
        settings = tomllib.loads((WORKER / "profiles.toml").read_text())[profile].get("env", {})
        self.environ = {**clean, **settings, "PYTHONPATH": environment["site"], "OMP_NUM_THREADS": "1"}

    def module(self, name, *arguments, stdin=None):
        """Run a module in the environment and wait until it ends."""
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
        done = self.module("cleanrl_worker.cli", "--config", self.write(config))
        assert done.returncode == code, done.stderr
        self.log = done.stderr
        return by_name(done.stdout)

    def refusal(self, **config):
        """Run a config that the worker must refuse; return the error message."""
        (failed,) = self.run(code=2, **config)["run_failed"]
        assert failed["category"] == "configuration"
        return failed["error"]

    def dry_run(self, **config):
        """Check a config with a dry run; return the exit code and the answer."""
        done = self.module("cleanrl_worker.cli", "--config", self.write(config), "--dry-run")
        return done.returncode, json.loads(done.stdout)

    def talk(self, *requests, **config):
        """Send requests in interactive mode; return the answers."""
        lines = "".join(json.dumps(request) + "\n" for request in requests)
        done = self.module("cleanrl_worker.cli", "--config", self.write(config), "--interactive", stdin=lines)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    def python_says(self, code):
        """Run a few lines of Python in the environment; return the JSON that they print."""
        command = [self.python, "-c", code]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environ, capture_output=True, text=True, check=False, timeout=DEADLINE_S
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])  # libraries may print before it

    def refusals(self, *configs):
        """Return the refusal of each config. All run in one process, which imports torch only once."""
        return self.python_says(REFUSALS.format(configs=list(configs)))

    def start(self, **config):
        """Start a run in the background. Its journal is a file, as on the platform."""
        return Running(self, self.write(config))

    def write(self, config):
        """Write a config file: flat, or nested if there is a `resume` to put beside the config."""
        path = self.folder / "worker.json"
        resume = config.pop("resume", None)
        document = {"run_id": "r1", **config}
        if resume is not None:
            document = {"run_id": "r1", "metadata": {"worker": {"config": config}}, "resume": resume}
        path.write_text(json.dumps(document))
        return path


class Running:
    """A run in the background; leaving the `with` block kills it."""

    def __init__(self, worker, config):
        self._journal = worker.folder / "journal.jsonl"
        with self._journal.open("w") as journal, (worker.folder / "log.txt").open("w") as log:
            self._process = subprocess.Popen(
                [worker.python, "-m", "cleanrl_worker.cli", "--config", config],
                stdin=subprocess.DEVNULL,
                stdout=journal,
                stderr=log,
                cwd=worker.folder,
                env=worker.environ,
                start_new_session=True,
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def events(self):
        """Return the events written so far, grouped by name, without an incomplete last line."""
        return by_name(self._journal.read_text().rpartition("\n")[0])

    def wait_until(self, condition, deadline_s=DEADLINE_S):
        """Wait until a condition on the events is true; return its value."""
        end = time.monotonic() + deadline_s
        while not (found := condition(self.events())):
            assert time.monotonic() < end, "it did not come in time"
            assert self._process.poll() is None, (self._journal.parent / "log.txt").read_text()
            time.sleep(0.01)
        return found

    def signal(self, number, deadline_s=DEADLINE_S):
        """Send a signal and wait until the run ends; return the exit code."""
        self._process.send_signal(number)
        return self._process.wait(timeout=deadline_s)


def by_name(text):
    events = [json.loads(line) for line in text.splitlines()]
    return {name: [event for event in events if event["event"] == name] for name in {e["event"] for e in events}}


@pytest.fixture(scope="session")
def worker_in(environment):
    """Return a function that creates the worker in a folder: `worker_in(path)`, `worker_in(path, "legacy")`."""

    def make(folder, profile="default"):
        folder.mkdir(exist_ok=True)
        return CleanRL(environment(profile), folder, profile)

    return make


@pytest.fixture
def cleanrl(worker_in, tmp_path):
    """The worker of the default profile in the test's folder."""
    return worker_in(tmp_path)


@pytest.fixture(scope="session")
def trained(worker_in, tmp_path_factory):
    """The path of a model, briefly trained on CartPole, that pushes in the direction in which the pole falls."""
    worker = worker_in(tmp_path_factory.mktemp("trained"))
    settings = {"learning_rate": 2e-3, "update_epochs": 6, "ent_coef": 0.0}
    config = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 8192, "seed": 1}
    events = worker.run(**config, extras={"algo_params": settings})
    return str(worker.folder / events["checkpoint_saved"][-1]["path"])
