"""Runs of the CleanRL worker with upstream scripts: starts the worker as the platform does and reads its events."""

import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from mosaic_bus.frames import FrameReader

__all__ = ["SHAPES", "Done", "FrameReader", "Worker", "bare", "build", "checkout_of", "tensorboard_scalars"]

TESTS = Path(__file__).parents[2] / "workers" / "cleanrl_worker" / "tests"
SHAPES = TESTS / "shapes"
DEADLINE_S = 280


@functools.cache
def build(profile):
    """Build a profile as the platform does, cached outside the checkout; return its interpreter and its site."""
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-m", "mosaic_services.environments", "cleanrl", profile, "--home", home]
        built = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert built.returncode == 0, built.stdout + built.stderr
    found = json.loads(built.stdout.splitlines()[-1])
    return Path(found["python"]), Path(found["site"])


@dataclass
class Done:
    """A run that has ended."""

    code: int
    events: list
    log: str
    folder: Path

    def all(self, name):
        return [event for event in self.events if event["event"] == name]

    def one(self, name):
        (event,) = self.all(name)
        return event

    @property
    def scalars(self):
        """The points of every scalar, by tag, as (step, value)."""
        found = {}
        for event in self.all("scalars"):
            for tag, value in event["values"].items():
                found.setdefault(tag, []).append((event["step"], value))
        return found

    @property
    def error(self):
        return self.one("run_failed")["error"]


class Worker:
    """Starts the worker of one profile in its own folder."""

    def __init__(self, profile, folder, upstream=None, **variables):
        self.python, self.site = build(profile)
        self.folder = folder
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("MOSAIC_", "PYTHON", "WANDB_"))}
        self.environ = {
            **clean,
            "PYTHONPATH": str(self.site),
            "SDL_VIDEODRIVER": "dummy",
            "PYGLET_HEADLESS": "1",
            "OMP_NUM_THREADS": "1",
            **({"MOSAIC_UPSTREAM": str(upstream)} if upstream else {}),
            **variables,
        }

    def start(self, *arguments, **config):
        """Start a run; its events and its log go to files, as on the platform."""
        self.folder.mkdir(exist_ok=True)
        path = self.folder / "worker.json"
        path.write_text(json.dumps({"run_id": "r1", **config}))
        command = [self.python, "-m", "cleanrl_worker.cli", "--config", path, *arguments]
        with (self.folder / "journal.jsonl").open("ab") as journal, (self.folder / "log.txt").open("ab") as log:
            return subprocess.Popen(
                command, cwd=self.folder, env=self.environ, stdin=subprocess.DEVNULL, stdout=journal, stderr=log
            )

    def events(self):
        return [json.loads(line) for line in (self.folder / "journal.jsonl").read_text().splitlines()]

    def log(self):
        return (self.folder / "log.txt").read_text()

    def end(self, process):
        """Wait until a run ends; return its result."""
        try:
            code = process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError(f"the run did not end:\n{self.log()}") from None
        return Done(code, self.events(), self.log(), self.folder)

    def run(self, *arguments, code=0, **config):
        done = self.end(self.start(*arguments, **config))
        assert done.code == code, f"exit code {done.code}\n{done.log}\n{done.events[-1:]}"
        return done

    def wait_for(self, process, condition):
        """Wait until a condition is true; fail if the worker ends first."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert process.poll() is None, f"the run has ended:\n{self.log()}"
            assert time.monotonic() < deadline, f"it never happened:\n{self.log()}"
            time.sleep(0.05)

    def wait_for_event(self, process, name):
        self.wait_for(process, lambda: any(event["event"] == name for event in self.events()))

    def processes(self):
        """Return the processes in the run's folder: pid -> command line."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and (entry / "cwd").readlink() == self.folder:
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
        return found

    def left(self):
        """Return the processes and counter folders that remain after a grace period; kill the processes."""
        deadline = time.monotonic() + 10
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        return [*left, *self.folder.glob(".training-*")]


def bare(python, script, folder, *arguments):
    """Run a script without hooks, as a user would; return its output."""
    folder.mkdir()
    environ = {**os.environ, "PYTHONPATH": str(SHAPES), "OMP_NUM_THREADS": "1", "SDL_VIDEODRIVER": "dummy"}
    command = [python, script, *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, check=True, timeout=DEADLINE_S
    )
    return done.stdout


def tensorboard_scalars(python, folder):
    """Read all scalars of TensorBoard files, with the TensorBoard of the given environment."""
    code = (
        "import glob, json, sys\n"
        "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
        "found = {}\n"
        "for path in glob.glob(sys.argv[1] + '/**/events.out.tfevents.*', recursive=True):\n"
        "    events = EventAccumulator(path, size_guidance={'scalars': 0}).Reload()\n"
        "    for tag in events.Tags()['scalars']:\n"
        "        found[tag] = [(event.step, event.value) for event in events.Scalars(tag)]\n"
        "print(json.dumps(found))\n"
    )
    command = [python, "-c", code, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLINE_S)
    return {tag: [tuple(point) for point in points] for tag, points in json.loads(done.stdout).items()}


def checkout_of(folder, **scripts):
    """Create a checkout from our shapes; `scripts` adds copies under other names: pqn="ppo" copies ppo to pqn."""
    shutil.copytree(SHAPES, folder)
    for name, shape in scripts.items():
        shutil.copyfile(SHAPES / "cleanrl" / f"{shape}.py", folder / "cleanrl" / f"{name}.py")
    return folder
