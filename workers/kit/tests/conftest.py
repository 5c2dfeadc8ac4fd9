"""Fixtures that install a small worker into a folder, as pip would, and start it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

KIT = Path(__file__).resolve().parents[1]

INIT = """
from mosaic_worker import WorkerCapabilities, WorkerConfig, WorkerMetadata

class TinyConfig(WorkerConfig):
    episodes: int = 3
    mode: str = "plain"

def get_worker_metadata():
    return WorkerMetadata(
        name="tiny", version="1.2.3", description="A worker for tests", config_model=TinyConfig,
        capabilities=WorkerCapabilities(
            worker_type="tiny", supports_resume=True, interactive_commands=("reset", "step")
        ),
        example_config={"episodes": 300, "seed": 5},
    )
"""

CLI = """
import atexit, multiprocessing, os, random, signal, subprocess, sys, threading, time
from pathlib import Path
from mosaic_worker import ConfigError, InfrastructureError, InteractiveWorker, StepResult, run_worker
from mosaic_worker.stdout import journal_for_child
from tiny_worker import get_worker_metadata

class SlowToDestroy:
    def __del__(self):
        Path("destroyed").touch()

def run(context):
    emitter, config = context.emitter, context.config
    emitter.run_started(config.run_id, "tiny", seed=config.seed)
    if config.mode == "raise":
        raise RuntimeError("the sky fell")
    if config.mode == "disk":
        raise InfrastructureError("the disk is on fire")
    if config.mode == "resume" and context.resume is not None:
        emitter.checkpoint_loaded(context.resume.path, step=context.resume.step)
    if config.mode == "exit":
        sys.exit(0)
    if config.mode == "prints":
        print("from python")
        os.write(1, b"from C\\n")
        subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)
    if config.mode == "child":
        code = ("import os; from mosaic_worker.emitter import Emitter; from mosaic_worker.stdout import protect_stdout;"
                "e = Emitter(protect_stdout(os.environ)); print('from a child'); e.log('info', 'child writes')")
        subprocess.run([sys.executable, "-c", code], check=True, **journal_for_child(emitter.fd, os.environ))
    if config.mode == "leak":
        print(subprocess.run([sys.executable, "-c", f"import os; os.write({emitter.fd}, b'leaked')"]).returncode)
    if config.mode in ("wait", "wait-raise", "deaf"):
        while True:
            if config.mode == "wait":
                context.stop.check()
            time.sleep(0.01)
    if config.mode == "fork":
        ready, tell = os.pipe()  # a signal that arrives before the fork is done is lost, by the ways of CPython
        child = os.fork()
        if child == 0:
            os.write(tell, b"!")
            while True:
                time.sleep(0.01)
        os.read(ready, 1)
        os.kill(child, signal.SIGTERM)
        emitter.log("info", "child ended", signal=os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    if config.mode == "leave":
        atexit.register(Path("exit-handler").touch)
        threading.Thread(target=lambda: (time.sleep(0.2), Path("thread").touch())).start()
        multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,), daemon=True).start()
        sys.modules["slow_to_destroy"] = SlowToDestroy()
        print("not flushed yet", end="")
    if config.mode == "chatty":
        for number in range(config.episodes):
            print("x" * 4095)  # a page with its newline: the log has no room left in its last one
            emitter.episode(number, 0.0)
        return
    if config.mode == "end-twice":
        emitter.run_completed()
        emitter.run_completed()
    dice = random.Random(config.seed)
    first = int(Path(context.resume.path).read_text()) if context.resume and config.mode == "plain" else 0
    if first:
        emitter.checkpoint_loaded(context.resume.path, step=first)
    for episode in range(config.episodes):
        context.stop.check()
        score = dice.random()
        if episode >= first:
            emitter.episode(episode, score, length=1, step=episode + 1)
        if episode + 1 > first and (episode + 1) % 100 == 0:
            (context.run_dir / "saved").write_text(str(episode + 1))
            emitter.checkpoint_saved("saved", step=episode + 1)
    return {"played": config.episodes, "plan": dict(context.plan)}

def preflight(config, resume):
    if config.mode == "missing":
        raise ConfigError("mode: 'missing' is not installed here")
    return {"would": config.mode} if config.mode == "planned" else None

class Tiny(InteractiveWorker):
    def __init__(self, context):
        if context.config.mode == "broken":
            raise RuntimeError("no model")
        print("hello from a library")
    def reset(self, seed):
        return [seed or 0], {}
    def step(self, action):
        if action == "boom":
            raise RuntimeError("boom")
        if action == "exit":
            sys.exit(0)
        return StepResult(action, [0], float("inf"), False, False, {})

if __name__ == "__main__":
    deaf = "wait-raise" in "".join(open(sys.argv[2]).read()) if len(sys.argv) == 3 else False
    run_worker(get_worker_metadata(), run=run, interactive=Tiny, raise_in_main=deaf, preflight=preflight)
"""


def install(site, name, package, init, cli):
    """Write a package with its entry point, laid out as by `pip install --target`."""
    folder = site / package
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(init)
    (folder / "cli.py").write_text(cli)
    info = site / f"{package}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[mosaic.workers]\n{name} = {package}:get_worker_metadata\n")


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    install(folder, "tiny", "tiny_worker", INIT, CLI)
    return folder


class Tiny:
    """Starts the small worker in a given folder."""

    def __init__(self, site, folder):
        self.folder = folder
        self.stdout = folder / "journal.jsonl"
        self.stderr = folder / "log.txt"
        clean = {key: value for key, value in os.environ.items() if not key.startswith("MOSAIC_")}
        self.environ = {**clean, "PYTHONPATH": f"{site}{os.pathsep}{KIT}"}
        self.started = []

    def config(self, **fields):
        path = self.folder / "worker.json"
        path.write_text(json.dumps({"run_id": "r1", **fields}))
        return path

    def start(self, *arguments, stdin=subprocess.DEVNULL, **environ):
        with self.stdout.open("ab") as stdout, self.stderr.open("ab") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "tiny_worker.cli", *map(str, arguments)],
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                cwd=self.folder,
                env={**self.environ, **environ},
            )
        self.started.append(process)
        return process

    def run(self, *arguments, **environ):
        return self.start(*arguments, **environ).wait(60)

    def events(self):
        return [json.loads(line) for line in self.stdout.read_bytes().splitlines()]

    def wait_for(self, text):
        deadline = time.monotonic() + 60
        while text not in self.stdout.read_text() + self.stderr.read_text():
            assert time.monotonic() < deadline, f"{text!r} did not come; stderr: {self.stderr.read_text()}"
            time.sleep(0.005)


@pytest.fixture
def make_tiny():
    """Return a factory of `Tiny`; the processes it starts are killed after the test."""
    made = []

    def make(site, folder):
        made.append(Tiny(site, folder))
        return made[-1]

    yield make
    for process in [process for worker in made for process in worker.started]:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait(60)
        if process.stdin:
            process.stdin.close()


@pytest.fixture
def tiny(make_tiny, site, tmp_path):
    return make_tiny(site, tmp_path)


@pytest.fixture
def variant(tmp_path):
    """Install the small worker with parts of its code replaced; return the folder."""

    def make(**replacements):
        init, cli = INIT, CLI
        for old, new in replacements.pop("code", {}).items():
            assert old in init + cli, old
            init, cli = init.replace(old, new), cli.replace(old, new)
        folder = tmp_path / "variant"
        install(folder, replacements.pop("name", "tiny"), "tiny_worker", init, cli)
        return folder

    return make


@pytest.fixture(scope="session")
def run_module():
    """Run a kit module with a folder of installed workers on PYTHONPATH."""

    def run(module, site, *arguments, **settings):
        environ = {key: value for key, value in os.environ.items() if not key.startswith("MOSAIC_")}
        return subprocess.run(
            [sys.executable, "-m", module, *arguments],
            env={**environ, "PYTHONPATH": f"{site}{os.pathsep}{KIT}", **settings},
            capture_output=True,
            text=True,
            check=False,
            timeout=280,
        )

    return run
