"""The scripts say what is wrong, and do nothing twice."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DASHBOARD = Path("services", "dashboard")


def run(*command, timeout=100, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **options)


@pytest.fixture
def checkout(tmp_path):
    """A copy of what scripts/setup reads, without a .venv."""
    for name in ("bus", "services", "workers/kit"):
        (tmp_path / name).mkdir(parents=True)
        shutil.copy(ROOT / name / "pyproject.toml", tmp_path / name)
    without_built = shutil.ignore_patterns("node_modules", "dist")
    shutil.copytree(ROOT / DASHBOARD, tmp_path / DASHBOARD, ignore=without_built)
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "setup", tmp_path / "scripts")
    for lock in ROOT.glob("*.lock"):
        shutil.copy(lock, tmp_path)
    return tmp_path


def make_python(path, version):
    """Write an interpreter that is this one, but believes its version is another."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        f'#!/bin/sh\nif [ "$1" = --version ]; then echo "Python {".".join(map(str, version))}"; exit; fi\n'
        f'[ "$1" = -c ] || exit 1\n'
        f'exec "{sys.executable}" -c "import sys; sys.version_info = {version}; $2"\n'
    )
    path.chmod(0o755)
    return path


def make_bin(folder):
    """Make a folder of commands in which no python3 can be found."""
    folder.mkdir()
    for name in ("bash", "env", "cat", "cut", "sed", "dirname", "mkdir", "rm", "sha256sum", "shasum"):
        found = shutil.which(name)
        if found:
            (folder / name).symlink_to(found)
    return folder


def test_setup_with_nothing_to_do_says_nothing():
    result = run(ROOT / "scripts" / "setup", "--dev", env=os.environ | {"PYTHON": ""})
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_setup_refuses_an_argument_it_does_not_know(checkout):
    result = run(checkout / "scripts" / "setup", "--devel")
    assert result.returncode == 2
    assert "unknown argument '--devel'" in result.stderr


def test_setup_refuses_the_named_python_when_it_is_too_old(checkout):
    python = make_python(checkout / "old" / "python3", (3, 10, 4))
    result = run(checkout / "scripts" / "setup", env=os.environ | {"PYTHON": str(python)})
    assert result.returncode == 1
    assert f"PYTHON={python} is Python 3.10.4: MOSAIC needs Python 3.11 or newer" in result.stderr
    assert not (checkout / ".venv").exists()


def test_setup_without_any_usable_python_says_what_to_install(checkout):
    folder = make_bin(checkout / "bin")
    make_python(folder / "python3", (3, 9, 1))
    result = run(checkout / "scripts" / "setup", env={"PATH": str(folder)})
    assert result.returncode == 1
    assert "MOSAIC needs Python 3.11 or newer" in result.stderr
    assert "python3 here is: Python 3.9.1." in result.stderr
    assert not (checkout / ".venv").exists()


def test_setup_passes_over_an_old_python3_for_a_newer_one(checkout):
    folder = make_bin(checkout / "bin")
    make_python(folder / "python3", (3, 9, 1))
    make_python(folder / "python3.12", (3, 12, 7))  # cannot make a virtualenv: that it was chosen is enough here
    result = run(checkout / "scripts" / "setup", env={"PATH": str(folder)})
    assert result.stdout == "setup: Python 3.12.7 → .venv\n"
    assert "'python3.12 -m venv' failed" in result.stderr


@pytest.mark.slow
def test_setup_shows_what_pip_said_when_it_fails(checkout):
    (checkout / "requirements.lock").write_text("this is no requirement\n")
    result = run(checkout / "scripts" / "setup", env=os.environ | {"PYTHON": sys.executable})
    assert result.returncode == 1
    assert "packages of requirements.lock … failed" in result.stdout
    assert "this is no requirement" in result.stderr
    assert not list((checkout / ".venv").glob("*.stamp"))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_setup_builds_the_dashboard_without_node_and_says_loudly_if_it_cannot(checkout):
    folder = make_bin(checkout / "bin")
    for name in ("sh", "mktemp", "uname", "ls"):
        (folder / name).symlink_to(shutil.which(name))
    env = os.environ | {"PATH": str(folder), "PYTHON": sys.executable, "TMPDIR": str(checkout / "tmp")}
    (checkout / "tmp").mkdir()
    setup = (checkout / "scripts" / "setup", "--page")
    first = run(*setup, env=env, timeout=1000)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "node from PyPI, to build the dashboard" in first.stdout
    assert (checkout / DASHBOARD / "dist" / "index.html").exists()
    assert list((checkout / "tmp").iterdir()) == [], "the node was thrown away"
    assert run(*setup, env=env).stdout == ""

    (checkout / DASHBOARD / "src" / "main.tsx").write_text("const wrong: number = 'text';\n")
    env["PATH"] = os.environ["PATH"] if shutil.which("npm") else env["PATH"]
    second = run(*setup, env=env, timeout=1000)
    assert second.returncode == 1
    assert "dashboard (services/dashboard) … failed" in second.stdout
    assert "is not assignable to type 'number'" in second.stderr


def test_bench_lists_the_benches_and_refuses_others(tmp_path):
    (tmp_path / "scripts" / "benches").mkdir(parents=True)
    bench = shutil.copy(ROOT / "scripts" / "bench", tmp_path / "scripts")
    assert "no benches yet" in run(bench).stdout
    (tmp_path / "scripts" / "benches" / "echo.py").write_text('"""How fast an echo is.\n\nMore.\n"""\n')
    assert run(bench).stdout.splitlines()[-1].split(maxsplit=1) == ["echo", "How fast an echo is."]
    result = run(bench, "missing")
    assert result.returncode == 2
    assert "there is no bench 'missing'" in result.stderr
