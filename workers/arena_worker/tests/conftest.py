"""The arena in its environment, built from its lock as the platform builds it, and policies for it to play."""

import json
import os
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

DEADLINE_S = 280
WORKER = Path(__file__).parents[1]
ODD = Path(__file__).parent / "odd_policy.py"
ORIGINAL = Path(__file__).parent / "original_policy.py"


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """Give the default profile of a worker as the platform builds it, cached outside the checkout."""
    home = tmp_path_factory.mktemp("home")

    @cache
    def build(worker):
        command = [sys.executable, "-m", "mosaic_services.environments", worker, "default", "--home", str(home)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return build


class Arena:
    """Runs the arena in a folder of its own."""

    def __init__(self, built, folder):
        self._built = built
        self.folder = folder
        self.python = built("arena")["python"]
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("MOSAIC_", "PYTHON"))}
        settings = tomllib.loads((WORKER / "profiles.toml").read_text())["default"]["env"]
        self.environ = {**clean, **settings, "PYTHONPATH": built("arena")["site"], "OMP_NUM_THREADS": "1"}

    def uses(self):
        """The environments of policies, as a run finds them in worker.json."""
        baseline, own = self._built("baseline"), self._built("arena")
        return [
            {
                "worker": "baseline",
                "profile": "default",
                "argv": [baseline["python"], "-m", "baseline_worker.cli"],
                "environ": {"PYTHONPATH": baseline["site"]},
            },
            {
                "worker": "odd",
                "profile": "default",
                "argv": [own["python"], str(ODD)],
                "environ": {"PYTHONPATH": own["site"]},
            },
            {"worker": "original", "profile": "default", "argv": [own["python"], str(ORIGINAL)], "environ": {}},
        ]

    def write(self, name, config, **top):
        folder = self.folder / name
        folder.mkdir()
        document = {"run_id": "r1", "metadata": {"worker": {"config": config}}, "uses": self.uses(), **top}
        (folder / "worker.json").write_text(json.dumps(document))
        return folder

    def command(self, folder, *arguments):
        return [self.python, "-m", "arena_worker.cli", "--config", str(folder / "worker.json"), *arguments]

    def run(self, name, config, code=0, **top):
        """Run a config to its end; return the events by name, and the records in order."""
        folder = self.write(name, config, **top)
        done = subprocess.run(
            self.command(folder),
            cwd=folder,
            env={**self.environ, "MOSAIC_RUN_DIR": str(folder)},
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE_S,
        )
        assert done.returncode == code, done.stderr + done.stdout[-2000:]
        events = {}
        for line in done.stdout.splitlines():
            event = json.loads(line)
            events.setdefault(event["event"], []).append(event)
        return events, self.records(folder / "episodes.jsonl")

    @staticmethod
    def records(path):
        """What a file of records holds, but for times, sorted."""
        if not path.exists():
            return []
        found = [json.loads(line) for line in path.read_text().splitlines()]
        for record in found:
            record.pop("timing")
        return sorted(found, key=lambda record: (record["lineup"], record["episode"]))

    @staticmethod
    def shard(env_id, operators, lineups=None, episodes=4, **more):
        """A config; without lineups, each operator plays alone."""
        lineups = lineups or {name: {"*": name} for name in operators}
        environment = {"id": env_id, **more.pop("environment", {})}
        return {
            "environment": environment,
            "operators": operators,
            "lineups": [{"name": name, "agents": agents} for name, agents in lineups.items()],
            "play": [{"lineup": name, "episodes": [0, episodes]} for name in lineups],
            **more,
        }

    def module(self, name, *arguments):
        command = [self.python, "-m", name, *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=self.environ, capture_output=True, text=True, check=False, timeout=DEADLINE_S
        )


@pytest.fixture
def arena(built, tmp_path):
    return Arena(built, tmp_path)
