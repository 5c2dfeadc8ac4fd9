"""Real builds, in a cache of their own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from stack import HOST, STRESS, Stack, wait_until
from ulid import ULID

from mosaic_bus.commands import Place
from mosaic_bus.messages import BuildProgress, HostState, RunSpec
from mosaic_services.environments import BuildError, DescriptionError, build, read_recipe, status
from mosaic_services.environments.environment import cache_folder
from mosaic_services.environments.wheels import build_wheel
from mosaic_services.home import StackHome

pytestmark = pytest.mark.slow
SHARED_CACHE = cache_folder()  # The cache of all other tests.
BROKEN = "this-package-does-not-exist-anywhere==1.0\n"


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("MOSAIC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def worker(tmp_path) -> Path:
    """A copy of the stress worker that tests may change."""
    return Path(shutil.copytree(STRESS, tmp_path / "stress_worker", ignore=shutil.ignore_patterns("__pycache__")))


def start_build(folder: Path, home: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "mosaic_services.environments", "stress", "default", "--home", str(home)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "MOSAIC_WORKERS": str(folder)},
        start_new_session=True,
    )


def said(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    output, _ = process.communicate(timeout=240)
    return [json.loads(line) for line in output.splitlines()]


def test_build_from_nothing_then_again_then_changed_then_cut_short(tmp_path: Path, cache: Path, worker: Path):
    home = tmp_path / "home"
    StackHome.find(home).create()

    # Killed while packages are fetched. Its pip goes on, and nobody else starts before pip has ended.
    cut = start_build(worker, home)
    assert cut.stdout is not None
    line = ""
    while "fetching" not in line:
        line = cut.stdout.readline()
        assert line
    (pip,) = [each for each in psutil.Process(cut.pid).children() if each.is_running()]
    os.kill(cut.pid, signal.SIGSTOP)
    pip.suspend()
    os.kill(cut.pid, signal.SIGKILL)
    cut.wait()
    cut.stdout.close()
    assert status(read_recipe(worker), "default").status == "available"

    # Two builds at once: one builds, the other waits and finds it built.
    both = [start_build(worker, home) for _ in range(2)]
    assert all(process.stdout is not None and "waiting" in process.stdout.readline() for process in both)
    pip.resume()
    began = time.monotonic()
    stories = [said(process) for process in both]
    print(f"built in {time.monotonic() - began:.1f} s")
    assert all(process.returncode == 0 for process in both)
    assert sum(any(each["step"] == "creating a virtualenv" for each in story) for story in stories) == 1
    assert sum(any(each["step"] == "installing stress_worker" for each in story) for story in stories) == 1
    for story in stories:
        percents = [each["percent"] for each in story]
        assert percents == sorted(percents)
        assert story[-1].items() >= {"step": "installed", "percent": 100.0, "done": True}.items()
    environment = status(read_recipe(worker), "default")
    assert environment.status == "installed"
    assert environment.description["metadata"]["name"] == "stress"

    # A second build does nothing.
    steps: list[str] = []
    build(read_recipe(worker), "default", lambda step, _: steps.append(step))
    assert steps == []

    # Changed code gives another site with the same virtualenv; the old site stays.
    with (worker / "stress_worker" / "__init__.py").open("a") as file:
        file.write("\nCHANGED = True\n")
    began = time.monotonic()
    changed = build(read_recipe(worker), "default", lambda step, _: steps.append(step))
    print(f"changed code installed in {time.monotonic() - began:.1f} s")
    assert changed.venv == environment.venv
    assert changed.site != environment.site
    assert "creating a virtualenv" not in steps
    for each, expected in ((environment, "False"), (changed, "True")):
        asked = "import stress_worker; print(hasattr(stress_worker, 'CHANGED'))"
        found = subprocess.run(
            [str(each.python), "-c", asked], env=each.environ(), capture_output=True, text=True, check=True
        )
        assert found.stdout.strip() == expected

    # A site without its mark is incomplete and is built again.
    (changed.site / "complete.json").unlink()
    (changed.site / "half").touch()
    build(read_recipe(worker), "default", lambda step, _: steps.append(step))
    assert not (changed.site / "half").exists()

    # Code that cannot be imported: the error quotes Python.
    (worker / "stress_worker" / "__init__.py").write_text("import nonsense_that_is_not_there\n")
    with pytest.raises(DescriptionError, match="No module named 'nonsense_that_is_not_there'"):
        build(read_recipe(worker), "default", lambda _step, _percent: None)

    # Code that cannot be built: pip says why.
    (worker / "pyproject.toml").write_text(
        (worker / "pyproject.toml").read_text().replace('packages = ["stress_worker"]', 'packages = ["missing"]')
    )
    with pytest.raises(BuildError, match="installing stress_worker failed"):
        build(read_recipe(worker), "default", lambda _step, _percent: None)


def test_lock_that_cannot_be_installed_is_broken_at_the_supervisor_and_fails_the_attempt(
    tmp_path: Path, cache: Path, worker: Path
):
    (worker / "locks" / "default.lock").write_text(BROKEN)
    stack = Stack(tmp_path / "home", environ={"MOSAIC_WORKERS": str(worker), "MOSAIC_CACHE": str(cache)})
    try:
        for service in ("broker", "supervisor"):
            stack.start(service)
            stack.wait_for(service)
        heard = stack.bus.listen(f"state.host.{HOST}.", f"build.{HOST}.", timeout=60)
        run = str(ULID())
        place = Place(run=run, attempt=1, run_name="x", spec=RunSpec(worker="stress"))
        stack.bus.request(f"supervisor.{HOST}", place, timeout=20)
        details, percents, error = [], [], ""
        for message in heard:
            if message.topic.startswith("build."):
                progress = BuildProgress.model_validate(message.payload)
                percents.append(progress.percent)
                error = progress.error or error
                continue
            state = HostState.model_validate(message.payload)
            (attempt,) = [each for each in state.attempts if each.run == run] or [None]
            (environment,) = [
                each for each in state.environments if (each.worker, each.profile) == ("stress", "default")
            ]
            if attempt is not None and attempt.phase == "preparing":
                details.append(attempt.detail)
            if attempt is not None and attempt.phase == "ended":
                break
        heard.close()
        assert attempt is not None
        assert attempt.exit is not None
        assert attempt.exit.category == "infrastructure"
        assert "installing the locked packages failed: ERROR: No matching distribution" in attempt.exit.reason
        assert environment.status == "broken"
        assert "No matching distribution" in environment.detail
        assert "No matching distribution" in error
        assert percents == sorted(percents)
        assert any("virtualenv" in detail for detail in details)
        assert not any((cache / "sites").glob("*/complete.json"))
    finally:
        stack.close()


def test_stop_while_the_environment_is_built_ends_the_attempt_and_the_end_of_the_supervisor_ends_the_build(
    tmp_path: Path, cache: Path, worker: Path
):
    from mosaic_bus.commands import Stop

    # A lock like no other, so it has to be built.
    with (worker / "locks" / "default.lock").open("a") as file:
        file.write(f"# {ULID()}\n")
    stack = Stack(tmp_path / "home", environ={"MOSAIC_WORKERS": str(worker), "MOSAIC_CACHE": str(cache)})
    try:
        for service in ("broker", "supervisor"):
            stack.start(service)
            stack.wait_for(service)
        run = str(ULID())
        place = Place(run=run, attempt=1, run_name="x", spec=RunSpec(worker="stress"))
        stack.bus.request(f"supervisor.{HOST}", place, timeout=20)
        wait_until("the build has begun", lambda: list((cache / "envs").glob("*")) if cache.exists() else [])
        stack.bus.request(f"supervisor.{HOST}", Stop(run=run, attempt=1, reason="changed my mind"))
        record = wait_until("an end", lambda: _read(stack.home.runs / run / "1" / "exit.json"))
        assert (record["stopped"], record["reason"], record["code"]) == (True, "changed my mind", None)
        assert not (stack.home.runs / run / "1" / "host.json").exists()
    finally:
        stack.close()
    wait_until("nothing builds any more", lambda: not [each for each in _commands() if str(cache) in each])


OLD_SETUP = """
import setuptools

assert int(setuptools.__version__.partition(".")[0]) < 66, f"setuptools {setuptools.__version__} is too new for this"
setuptools.setup(name="old-package", version="1.0", py_modules=["old_package"], install_requires=["numpy<1.0"])
"""


def test_source_package_that_needs_old_tools_is_built_with_them_and_the_environment_gets_new_ones(
    tmp_path: Path, cache: Path, worker: Path
):
    source = tmp_path / "old_package"
    source.mkdir()
    (source / "setup.py").write_text(OLD_SETUP)
    (source / "old_package.py").write_text("OLD = True\n")
    with (worker / "locks" / "default.lock").open("a") as file:
        file.write(f"# old and new\nold-package @ {source.as_uri()}\nSetuptools==80.9.0\n")
    profiles = worker / "profiles.toml"
    profiles.write_text("[default]\npython = '>=3.11,<3.14'\n")
    with pytest.raises(BuildError, match="installing the locked packages failed"):
        build(read_recipe(worker), "default", lambda _step, _percent: None)

    profiles.write_text(profiles.read_text() + "build_constraints = 'locks/build.txt'\n")
    (worker / "locks" / "build.txt").write_text("# for old_package\nsetuptools<66\nwheel<0.40\n")
    told: list[tuple[float, str]] = []
    environment = build(read_recipe(worker), "default", lambda step, percent: told.append((percent, step)))
    assert "building old-package" in [step for _, step in told]
    assert [percent for percent, _ in told] == sorted(percent for percent, _ in told)
    asked = "import old_package, numpy, importlib.metadata as m; print(old_package.OLD, m.version('setuptools'))"
    found = subprocess.run([str(environment.python), "-c", asked], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["True", "80.9.0"]


def _read(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None


def _commands() -> list[str]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            found.append(" ".join(process.cmdline()))
    return found


def test_package_for_another_backend_is_left_to_pip(tmp_path: Path, worker: Path):
    assert build_wheel(worker, tmp_path / "out") is not None
    text = (worker / "pyproject.toml").read_text()
    (worker / "pyproject.toml").write_text(text.replace("setuptools>=68", "setuptools>=68, <69"))
    assert build_wheel(worker, tmp_path / "other") is None


def test_what_is_edited_while_it_is_built_never_stands_under_the_name_of_something_else(
    tmp_path: Path, cache: Path, worker: Path
):
    cache.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOSAIC_CACHE", str(SHARED_CACHE))
        build(read_recipe(STRESS), "default", lambda _step, _percent: None)
    (cache / "envs").symlink_to(SHARED_CACHE / "envs")  # Packages do not matter here.
    source = worker / "stress_worker" / "cli.py"
    before = source.read_text()
    first = status(read_recipe(worker), "default")
    edits = iter([before + "\nEDITED = 1\n", before + "\nEDITED = 2\n"])
    told = []

    def edit(step: str, _: float) -> None:
        told.append(step)
        if step.startswith(("installing stress_worker", "asking")) and (text := next(edits, None)):
            source.write_text(text)

    built = build(read_recipe(worker), "default", edit)
    assert built.status == "installed"
    assert built.site == status(read_recipe(worker), "default").site
    assert "EDITED = 2" in (built.site / "stress_worker" / "cli.py").read_text()
    assert len([step for step in told if "starting again" in step]) == 2
    source.write_text(before)
    assert status(read_recipe(worker), "default") == first
    assert first.status == "available", "what was there before was never built"
    assert [path.name for path in (cache / "sites").iterdir() if path.is_dir()] == [built.site.name]
