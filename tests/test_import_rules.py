"""The import rules hold in this checkout, and the check notices when they are broken."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "check_imports.py"


def run_check(root):
    return subprocess.run([sys.executable, SCRIPT, root], capture_output=True, text=True, timeout=60, check=False)


@pytest.fixture
def tree(tmp_path):
    """A small checkout with every kind of part, in which all imports are allowed."""
    files = {
        "bus/mosaic_bus/__init__.py": "import zmq\n",
        "services/mosaic_services/__init__.py": "",
        "services/mosaic_services/home.py": "import mosaic_bus\n",
        "services/mosaic_services/environments/__init__.py": "from mosaic_services.home import x\n",
        "services/mosaic_services/scheduler/__init__.py": "import mosaic_bus\nfrom mosaic_services import home\n",
        "services/mosaic_services/scheduler/core.py": "from . import rules\nfrom .rules import RULES\nimport psutil\n",
        "services/mosaic_services/scheduler/rules.py": "from mosaic_services.scheduler import core\n",
        "services/mosaic_services/telemetry/__init__.py": "from ..environments import x\nimport mosaic_worker.events\n",
        "services/mosaic_services/cli/__init__.py": "import typer\nfrom mosaic_services import environments\n",
        "services/tests/test_all.py": "import mosaic_services.scheduler, mosaic_services.telemetry\n",
        "workers/kit/mosaic_worker/__init__.py": "import json\n",
        "workers/red_worker/red_worker/__init__.py": "import torch\nimport mosaic_worker\nimport red_worker.cli\n",
        "workers/blue_worker/blue_worker/__init__.py": "from mosaic_worker import cli\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_this_checkout_keeps_the_rules():
    result = run_check(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


def test_allowed_imports_pass(tree):
    result = run_check(tree)
    assert (result.returncode, result.stdout) == (0, "imports: 0 breaches of the rules\n"), result.stderr


SCHEDULER = "services/mosaic_services/scheduler/core.py"
CLI = "services/mosaic_services/cli/main.py"
RED = "workers/red_worker/red_worker/cli.py"


@pytest.mark.parametrize(
    ("path", "line", "module"),
    [
        # A service and another service, in every way Python has of importing.
        (SCHEDULER, "import mosaic_services.telemetry", "mosaic_services.telemetry"),
        (SCHEDULER, "import mosaic_services.telemetry.store as store", "mosaic_services.telemetry"),
        (SCHEDULER, "from mosaic_services import telemetry", "mosaic_services.telemetry"),
        (SCHEDULER, "from mosaic_services.telemetry.store import Store", "mosaic_services.telemetry"),
        (SCHEDULER, "from .. import telemetry", "mosaic_services.telemetry"),
        (SCHEDULER, "from ..telemetry import store", "mosaic_services.telemetry"),
        (SCHEDULER, "def late():\n    import mosaic_services.supervisor", "mosaic_services.supervisor"),
        (SCHEDULER, "import importlib; importlib.import_module('mosaic_services.broker')", "mosaic_services.broker"),
        (SCHEDULER, "__import__('mosaic_services.supervisor')", "mosaic_services.supervisor"),
        (SCHEDULER, "from mosaic_services.cli.main import app", "mosaic_services.cli"),
        (SCHEDULER, "import red_worker", "red_worker"),
        (CLI, "from mosaic_services.supervisor import hosts", "mosaic_services.supervisor"),
        # What is shared would be a way around the rule.
        ("services/mosaic_services/home.py", "from mosaic_services import scheduler", "mosaic_services.scheduler"),
        ("services/mosaic_services/environments/a.py", "from ..cli import app", "mosaic_services.cli"),
        # A worker and everything but the kit.
        (RED, "import mosaic_bus", "mosaic_bus"),
        (RED, "from mosaic_bus.topics import Topic", "mosaic_bus"),
        (RED, "import mosaic_services.environments", "mosaic_services"),
        (RED, "import blue_worker", "blue_worker"),
        ("workers/red_worker/tests/test_red.py", "import mosaic_bus", "mosaic_bus"),
        # Parts at the bottom.
        ("bus/mosaic_bus/client.py", "import mosaic_services", "mosaic_services"),
        ("bus/mosaic_bus/client.py", "import mosaic_worker.emitter", "mosaic_worker"),
        ("workers/kit/mosaic_worker/emitter.py", "import mosaic_bus", "mosaic_bus"),
        ("workers/kit/mosaic_worker/emitter.py", "from mosaic_services.home import x", "mosaic_services"),
        ("workers/kit/mosaic_worker/emitter.py", "import red_worker", "red_worker"),
    ],
)
def test_forbidden_import_is_reported_with_file_and_line(tree, path, line, module):
    (tree / path).parent.mkdir(parents=True, exist_ok=True)
    (tree / path).write_text(f'"""A module."""\n\n{line}\n')
    result = run_check(tree)
    number = 4 if line.startswith("def") else 3
    assert result.returncode == 1, result.stdout + result.stderr
    assert result.stdout.startswith(f"{path}:{number}: imports {module}: "), result.stdout
    assert result.stdout.endswith("\nimports: 1 breach of the rules\n")


def test_module_with_a_similar_name_is_no_breach(tree):
    (tree / RED).write_text("import mosaic_bus_stop\nimport blue_workers\n")
    assert run_check(tree).returncode == 0


def test_several_breaches_are_all_reported(tree):
    (tree / SCHEDULER).write_text("import mosaic_services.supervisor\nfrom mosaic_services import cli, telemetry\n")
    result = run_check(tree)
    assert result.stdout.endswith("\nimports: 3 breaches of the rules\n")
