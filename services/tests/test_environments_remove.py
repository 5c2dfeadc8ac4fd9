"""Removal of environments, in a cache of its own, with a copy of the virtualenv that all tests use."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from mosaic_cli import Cli
from stack import STRESS

from mosaic_services.environments import InUseError, build, read_recipe, remove, status
from mosaic_services.home import StackHome

QUIET = lambda _step, _percent: None  # noqa: E731 - shorter than a function with a docstring
HANG = "print('up', flush=True); import time; time.sleep(1000)"


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    shared = build(read_recipe(STRESS), "default", QUIET)
    folder = tmp_path / "cache"
    (folder / "envs").mkdir(parents=True)
    shutil.copytree(shared.venv, folder / "envs" / shared.venv.name, symlinks=True)
    monkeypatch.setenv("MOSAIC_CACHE", str(folder))
    return folder


@pytest.fixture
def worker(tmp_path) -> Path:
    return Path(shutil.copytree(STRESS, tmp_path / "stress_worker", ignore=shutil.ignore_patterns("__pycache__")))


def edit(worker: Path, text: str) -> None:
    with (worker / "stress_worker" / "__init__.py").open("a") as file:
        file.write(text)


@pytest.mark.slow
def test_all_versions_go_and_what_runs_or_is_needed_stays(tmp_path, cache, worker):
    home = StackHome.find(tmp_path / "home")
    home.create()
    old = build(read_recipe(worker), "default", QUIET)
    edit(worker, "\nNEWER = True\n")
    new = build(read_recipe(worker), "default", QUIET)
    with (worker / "profiles.toml").open("a") as file:
        file.write("\n[other]\nlock = 'locks/default.lock'\npython = '>=3.11,<3.14'\n")
    other = build(read_recipe(worker), "other", QUIET)
    assert (old.venv, old.site != new.site) == (new.venv, True) == (other.venv, True)

    command = [str(old.python), "-c", HANG]
    running = subprocess.Popen(command, env=old.environ(), stdout=subprocess.PIPE)
    try:
        assert running.stdout.readline() == b"up\n"
        with pytest.raises(InUseError, match=f"stress is in use by process {running.pid}"):
            remove("stress", None, home)
        assert [each.status for each in (old, new, other)] == ["installed"] * 3
    finally:
        running.kill()
        running.communicate()

    done = remove("stress", "default", home)
    assert (done.profiles, set(done.folders)) == (["default"], {old.site, new.site})
    assert (old.site.exists(), new.site.exists(), other.status) == (False, False, "installed")
    done = remove("stress", None, home)
    assert (done.profiles, done.folders) == (["other"], [other.site, other.venv])
    assert done.freed > 10_000_000
    assert [path.suffix for path in [*cache.glob("envs/*"), *cache.glob("sites/*")]] == [".lock"] * 4
    assert status(read_recipe(worker), "other").status == "available"


@pytest.mark.slow
def test_own_worker_is_installed_removed_and_forgotten(tmp_path, cache, worker):
    mosaic = Cli(tmp_path / "home")
    refused = mosaic("workers", "remove", "stress", code=2).stderr
    assert refused.startswith("error: worker 'stress' is unknown; known are ")
    mosaic("workers", "install", str(worker))
    assert (
        "has no profile 'defalt'; did you mean default?"
        in mosaic("workers", "remove", "stress", "--profile", "defalt", code=2).stderr
    )
    said = mosaic("workers", "remove", "stress").stdout
    assert said.startswith("✓ stress/default removed\n")
    assert " freed" in said
    assert "stress is no longer registered; its folder is unchanged" in said
    assert (worker / "profiles.toml").exists()
    assert "stress" not in [each["worker"] for each in mosaic.json("workers", "list")["workers"]]
    assert mosaic("workers", "remove", "baseline").stdout == "baseline is not installed\n"


def pretend(cache: Path, worker: str, profile: str, venv: str) -> Path:
    """Make the folders and files of a build, without content."""
    site = cache / "sites" / f"{worker}-{profile}-{venv * 16}"
    for folder in (site, cache / "envs" / venv):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "complete.json").write_text("{}")
    site.with_name(f"{site.name}.json").write_text(json.dumps({"worker": worker, "profile": profile, "venv": venv}))
    return site


@pytest.fixture
def pretended(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("MOSAIC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_names_that_begin_alike_are_told_apart(tmp_path, pretended):
    first, second = (pretend(pretended, *names) for names in (("a", "b-c", "1"), ("a-b", "c", "2")))
    assert remove("a", None, StackHome.find(tmp_path / "home")).folders == [first, pretended / "envs" / "1"]
    assert (first.exists(), second.exists(), (pretended / "envs" / "2").exists()) == (False, True, True)


def test_nothing_is_removed_that_no_note_names(tmp_path, pretended):
    mine = pretend(pretended, "mine", "default", "1")
    pretend(pretended, "other", "default", "2").with_suffix(".json").write_text("")  # As after a power failure.
    (pretended / "envs" / "of-somebody-else").mkdir()
    assert remove("mine", None, StackHome.find(tmp_path / "home")).folders == [mine, pretended / "envs" / "1"]
    assert sorted(path.name for path in (pretended / "envs").iterdir() if path.is_dir()) == ["2", "of-somebody-else"]


@pytest.mark.parametrize("what", ["sites", "envs"])
def test_what_is_being_built_is_not_removed_not_even_in_part(tmp_path, pretended, what):
    sites = [pretend(pretended, "mine", profile, "1") for profile in ("default", "other")]
    built = sites[1] if what == "sites" else pretended / "envs" / "1"
    with built.with_name(f"{built.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(InUseError, match="mine is being built"):
            remove("mine", None, StackHome.find(tmp_path / "home"))
    for folder in (*sites, pretended / "envs" / "1"):
        assert (folder / "complete.json").exists()
    assert remove("mine", None, StackHome.find(tmp_path / "home")).profiles == ["default", "other"]


def test_what_could_not_be_deleted_can_be_removed_again(tmp_path, pretended, monkeypatch):
    site = pretend(pretended, "mine", "default", "1")

    def refuse(path: Path) -> None:
        """A fake of rmtree, since root may delete everything."""
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", refuse)
        with pytest.raises(PermissionError):
            remove("mine", None, StackHome.find(tmp_path / "home"))
    assert not (pretended / "envs" / "1" / "complete.json").exists(), "half of it must not be taken for the whole"
    assert remove("mine", None, StackHome.find(tmp_path / "home")).folders == [site, pretended / "envs" / "1"]
