"""The worker in its environment, an arena that plays it, and a chat server that stands in for providers."""

import json
import os
import subprocess
import sys
import tomllib
import urllib.request
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from chat_server import KEY  # noqa: E402 - found only now

DEADLINE_S = 560
ARENA = HERE.parents[1] / "arena_worker"


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """Give a profile of a worker as the platform builds it, cached outside the checkout."""
    home = tmp_path_factory.mktemp("home")

    @cache
    def build(worker, profile="default"):
        command = [sys.executable, "-m", "mosaic_services.environments", worker, profile, "--home", str(home)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return build


class Server:
    """The chat server in a process of its own."""

    def __init__(self, *options):
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "chat_server.py"), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        told = json.loads(self._process.stdout.readline())
        self.address, self._stats = told["address"], told["stats"]

    def stats(self):
        with urllib.request.urlopen(self._stats, timeout=30) as answer:
            return json.load(answer)

    def close(self):
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


@pytest.fixture(scope="session")
def server():
    running = Server()
    yield running
    running.close()


class Arena:
    """Plays language models in a folder of its own, as a shard of an experiment does."""

    def __init__(self, built, folder):
        self._built = built
        self.folder = folder
        self.shared = folder / "shared"
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("MOSAIC_", "PYTHON"))}
        settings = tomllib.loads((ARENA / "profiles.toml").read_text())["default"]["env"]
        own = {"PYTHONPATH": built("arena")["site"], "OMP_NUM_THREADS": "1", "MOSAIC_SHARED_DIR": str(self.shared)}
        self.environ = {**clean, **settings, **own, "CHAT_KEY": KEY}

    def llm(self, server, model="good", **config):
        """An operator that asks the chat server."""
        where = {"endpoint": "vllm", "base_url": server.address, "key_env": "CHAT_KEY"}
        return {"worker": "llm", "config": {**where, "model": model, **config}}

    def uses(self, profile="default"):
        found = self._built("llm", profile)
        return [self._use("llm", profile, found), self._use("baseline", "default", self._built("baseline"))]

    @staticmethod
    def _use(worker, profile, found):
        argv = [found["python"], "-m", f"{worker}_worker.cli"]
        return {"worker": worker, "profile": profile, "argv": argv, "environ": {"PYTHONPATH": found["site"]}}

    def play(self, name, env_id, operators, lineups=None, episodes=2, code=0, profile="default", **more):
        """Play a shard to its end; return the records in order, and what the arena printed."""
        lineups = lineups or {each: {"*": each} for each in operators}
        config = {
            "environment": {"id": env_id, **more.pop("environment", {})},
            "operators": operators,
            "lineups": [{"name": each, "agents": agents} for each, agents in lineups.items()],
            "play": [{"lineup": each, "episodes": [0, episodes]} for each in lineups],
            "experiment": "test",
            **more,
        }
        folder = self.folder / name
        folder.mkdir()
        document = {"run_id": "r1", "metadata": {"worker": {"config": config}}, "uses": self.uses(profile)}
        (folder / "worker.json").write_text(json.dumps(document))
        done = subprocess.run(
            [self._built("arena")["python"], "-m", "arena_worker.cli", "--config", str(folder / "worker.json")],
            cwd=folder,
            env={**self.environ, "MOSAIC_RUN_DIR": str(folder)},
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )
        assert done.returncode == code, done.stderr[-4000:] + done.stdout[-2000:]
        (folder / "printed.txt").write_text(done.stdout + done.stderr)
        return self.records(folder), done.stdout

    @staticmethod
    def records(folder):
        path = folder / "episodes.jsonl"
        found = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        for record in found:
            record.pop("timing")
        return sorted(found, key=lambda record: (record["lineup"], record["episode"]))


@pytest.fixture
def arena(built, tmp_path):
    return Arena(built, tmp_path)
