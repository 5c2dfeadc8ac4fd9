"""Worker folders: every mistake is reported, and a broken folder does not affect the others."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest
from structlog.testing import capture_logs

from mosaic_bus.errors import CommandRefusedError
from mosaic_services.environments import (
    BuildError,
    RecipeError,
    UnknownProfileError,
    UnknownWorkerError,
    UpstreamError,
    fetch_upstream,
    find_recipes,
    read_recipe,
    recipe_for,
    register,
    remember_upstream,
    require_own_name,
    status,
)
from mosaic_services.environments.environment import _parts, find_python, source_files
from mosaic_services.environments.wheels import needs_only_setuptools
from mosaic_services.home import StackHome
from mosaic_services.supervisor import builder as builder_module
from mosaic_services.supervisor.builder import Builder

if TYPE_CHECKING:
    from pathlib import Path

PROJECT = '[project]\nname = "x"\nversion = "1"\n[project.entry-points."mosaic.workers"]\n'


def make_worker(
    folder: Path, *, points: str | None = 'mine = "mine_worker:meta"\n', profiles: str | None = "[default]\n"
) -> Path:
    (folder / "locks").mkdir(parents=True, exist_ok=True)
    (folder / "locks" / "default.lock").write_text("# nothing\n")
    (folder / "mine_worker").mkdir(exist_ok=True)
    (folder / "mine_worker" / "__init__.py").write_text("")
    if points is not None:
        (folder / "pyproject.toml").write_text(PROJECT + points)
    if profiles is not None:
        (folder / "profiles.toml").write_text(profiles)
    return folder


@pytest.fixture
def home(tmp_path, monkeypatch) -> StackHome:
    monkeypatch.delenv("MOSAIC_WORKERS", raising=False)
    home = StackHome.find(tmp_path / "home")
    home.create()
    return home


def test_recipe_is_read_with_its_defaults(tmp_path: Path):
    recipe = read_recipe(make_worker(tmp_path, profiles="[default]\nenv = {OMP_NUM_THREADS = 1}\n"))
    assert (recipe.worker, recipe.package) == ("mine", "mine_worker")
    profile = recipe.profile("default")
    assert (profile.python, profile.env) == (">=3.11", {"OMP_NUM_THREADS": "1"})
    assert profile.lock == tmp_path / "locks" / "default.lock"
    assert profile.warm is None


@pytest.mark.parametrize(("given", "modules"), [("[]", ()), ("['torch', 'a.b']", ("torch", "a.b"))])
def test_modules_to_import_beforehand_are_read(tmp_path: Path, given: str, modules: tuple[str, ...]):
    recipe = read_recipe(make_worker(tmp_path, profiles=f"[default]\nwarm = {given}\n"))
    assert recipe.profile("default").warm == modules


@pytest.mark.parametrize(
    ("made", "named"),
    [
        ({"points": None}, "pyproject.toml is missing"),
        ({"profiles": None}, "profiles.toml is missing"),
        ({"points": ""}, "has 0 entries"),
        ({"points": 'a = "a:m"\nb = "b:m"\n'}, "has 2 entries"),
        ({"points": 'a = "a:m'}, "pyproject.toml: "),
        ({"points": 'Mine = "mine:m"\n'}, "'Mine'"),
        ({"points": "mine = 7\n"}, "mine = 7"),
        ({"points": 'mine = ":m"\n'}, "':m'"),
        ({"profiles": ""}, "defines no profile"),
        ({"profiles": "[default\n"}, "profiles.toml: "),
        ({"profiles": "default = 1\n"}, "'default' is not a table"),
        ({"profiles": "[default]\nlok = 'x'\n"}, "unknown field 'lok'"),
        ({"profiles": "[gpu]\n"}, "locks/gpu.lock, which does not exist"),
        ({"profiles": "[default]\nlock = 'other.lock'\n"}, "other.lock, which does not exist"),
        ({"profiles": "[default]\nlock = 5\n"}, "lock is 5, not a string"),
        ({"profiles": "[default]\npython = 3.11\n"}, "python is 3.11, not a string"),
        ({"profiles": "[default]\npython = 'three'\n"}, "'three' is not a version range"),
        ({"profiles": "[default]\nenv = 'A=1'\n"}, "env is 'A=1'"),
        ({"profiles": "[default]\nno_deps = 'yes'\n"}, "no_deps is 'yes', not true or false"),
        ({"profiles": "[default]\nbuild_constraints = 5\n"}, "build_constraints is 5, not a string"),
        ({"profiles": "[default]\nbuild_constraints = 'no.txt'\n"}, "no.txt, which do not exist"),
        ({"profiles": "[default]\nupstream = ['x.py']\n"}, "upstream is ['x.py'], not a string"),
        ({"profiles": "[default]\nwarm = 'torch'\n"}, "warm is 'torch', not a list of modules"),
        ({"profiles": "[default]\nwarm = ['torch', 5]\n"}, "warm is ['torch', 5], not a list of modules"),
        ({"profiles": "[default]\nwarm = ['torch nn']\n"}, "warm is ['torch nn'], not a list of modules"),
        ({"profiles": "['GPU box']\n"}, "GPU box"),
    ],
)
def test_each_mistake_is_named(tmp_path: Path, home: StackHome, monkeypatch, made: dict[str, str | None], named: str):
    folder = make_worker(tmp_path / "mine_worker", **made)
    with pytest.raises(RecipeError) as caught:
        read_recipe(folder)
    assert named in str(caught.value)
    assert str(folder) in str(caught.value)
    # The others are not affected, and using it by name gives the same error.
    monkeypatch.setenv("MOSAIC_WORKERS", str(folder))
    assert "baseline" in {recipe.worker for recipe in find_recipes(home)}
    with pytest.raises(RecipeError, match="toml"):
        recipe_for("mine", home)


def test_files_that_cannot_be_read_are_named(tmp_path: Path):
    folder = make_worker(tmp_path)
    (folder / "profiles.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(RecipeError, match=r"profiles\.toml"):
        read_recipe(folder)
    (folder / "profiles.toml").unlink()
    (folder / "profiles.toml").mkdir()
    with pytest.raises(RecipeError, match="cannot be read"):
        read_recipe(folder)


def test_unknown_names_are_answered_with_near_ones(home: StackHome):
    with pytest.raises(UnknownWorkerError, match=r"'baselin' is unknown.*baseline"):
        recipe_for("baselin", home)
    with pytest.raises(UnknownProfileError, match=r"baseline has no profile 'defalt'.*default"):
        recipe_for("baseline", home).profile("defalt")


def test_registered_worker_is_found_by_name(tmp_path: Path, home: StackHome):
    folder = make_worker(tmp_path / "mine")
    register(read_recipe(folder), home)
    register(read_recipe(folder), home)
    assert recipe_for("mine", home).folder == folder
    assert "mine" in {recipe.worker for recipe in find_recipes(home)}
    # Its folder is removed: the others stay, and using it says why.
    (folder / "profiles.toml").unlink()
    assert "mine" not in {recipe.worker for recipe in find_recipes(home)}
    with pytest.raises(RecipeError, match="is missing"):
        recipe_for("mine", home)


def test_name_that_is_taken_is_not_registered_again(tmp_path: Path, home: StackHome):
    register(read_recipe(make_worker(tmp_path / "one")), home)
    other = read_recipe(make_worker(tmp_path / "two"))
    for refuse in (require_own_name, register):
        with pytest.raises(RecipeError, match=r"'mine' is already taken by .*one"):
            refuse(other, home)
    with pytest.raises(RecipeError, match=r"'baseline' is already taken"):
        register(read_recipe(make_worker(tmp_path / "three", points='baseline = "mine_worker:meta"\n')), home)


def test_folders_of_the_environment_variable_come_first(tmp_path: Path, home: StackHome, monkeypatch):
    register(read_recipe(make_worker(tmp_path / "registered")), home)
    first = make_worker(tmp_path / "first")
    second = make_worker(tmp_path / "second")
    monkeypatch.setenv("MOSAIC_WORKERS", f"{first}:{second}:{tmp_path / 'nowhere'}")
    assert recipe_for("mine", home).folder == first


def test_empty_and_odd_notes_are_passed_over(home: StackHome):
    (home.path / "workers").mkdir()
    (home.path / "workers" / "empty").write_text("")
    (home.path / "workers" / "folder").mkdir()
    assert "baseline" in {recipe.worker for recipe in find_recipes(home)}
    with pytest.raises(UnknownWorkerError):
        recipe_for("empty", home)


def test_path_is_read_as_a_folder(tmp_path: Path, home: StackHome, monkeypatch):
    make_worker(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert recipe_for(".", home).worker == recipe_for("./", home).worker == "mine"


def test_hash_changes_with_code_and_lock_and_not_with_tests(tmp_path: Path):
    folder = make_worker(tmp_path)
    before = status(read_recipe(folder), "default")
    (folder / "tests").mkdir()
    (folder / "tests" / "test_x.py").write_text("")
    (folder / "mine_worker" / "__pycache__").mkdir()
    (folder / "mine_worker" / "__pycache__" / "x.pyc").write_text("")
    assert status(read_recipe(folder), "default").site == before.site
    (folder / "mine_worker" / "build").mkdir()
    (folder / "mine_worker" / "build" / "__init__.py").write_text("")
    code = status(read_recipe(folder), "default")
    assert (code.venv, code.site == before.site) == (before.venv, False)
    (folder / "locks" / "default.lock").write_text("six==1.17.0\n")
    lock = status(read_recipe(folder), "default")
    assert lock.venv != before.venv
    assert lock.site != code.site


def test_file_whose_name_is_no_utf8_is_hashed_like_any_other(tmp_path: Path):
    folder = make_worker(tmp_path)
    before = status(read_recipe(folder), "default")
    with open(os.fsencode(folder) + b"/caf\xe9.txt", "w"):  # noqa: PTH123 - no str is this name
        pass
    assert status(read_recipe(folder), "default").site != before.site
    (folder / "café.txt").touch()
    assert _parts(folder, [folder / "café.txt"])[0] == "café.txt".encode(), "environments would be built anew"


def test_hash_changes_with_the_build_constraints(tmp_path: Path):
    folder = make_worker(tmp_path)
    venvs = {status(read_recipe(folder), "default").venv}
    make_worker(tmp_path, profiles="[default]\nbuild_constraints = 'locks/build.txt'\n")
    for constraints in ("setuptools<66\n", "setuptools<67\n"):
        (folder / "locks" / "build.txt").write_text(constraints)
        venvs.add(status(read_recipe(folder), "default").venv)
    assert len(venvs) == 3


def test_package_folders_named_like_build_folders_are_installed(tmp_path: Path):
    folder = make_worker(tmp_path)
    for name in ("build", "mine_worker/dist", "mine_worker/.hidden", "x.egg-info"):
        (folder / name).mkdir(parents=True)
        (folder / name / "f.py").write_text("")
    found = {str(path.relative_to(folder)) for path in source_files(folder)}
    assert found == {"pyproject.toml", "profiles.toml", "mine_worker/__init__.py", "mine_worker/dist/f.py"}


@pytest.mark.slow
def test_python_that_is_not_there_is_named_and_asked_for_only_once(tmp_path: Path, monkeypatch):
    with pytest.raises(BuildError, match=r"no Python >=3\.99 with the venv module"):
        find_python(">=3.99")

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("an interpreter was started again")

    monkeypatch.setattr("subprocess.run", forbidden)
    with pytest.raises(BuildError):
        find_python(">=3.99")


def test_worker_without_a_python_is_shown_as_broken_with_the_reason(tmp_path: Path, home: StackHome, monkeypatch):
    folder = make_worker(tmp_path / "mine", profiles="[default]\npython = '>=3.99'\n")
    monkeypatch.setenv("MOSAIC_WORKERS", str(folder))
    builder = Builder(home, "h", lambda _: None)
    builder.scan()
    (shown,) = [each for each in builder.statuses() if each.worker == "mine"]
    assert shown.status == "broken"
    assert "no Python >=3.99" in shown.detail


def test_worker_that_cannot_be_looked_at_hides_no_other(tmp_path: Path, home: StackHome, monkeypatch):
    def look(recipe, profile):
        if recipe.worker == "mine":
            raise RuntimeError("nobody thought of this")
        return status(recipe, profile)

    monkeypatch.setattr(builder_module, "status", look)
    monkeypatch.setenv("MOSAIC_WORKERS", str(make_worker(tmp_path / "mine")))
    builder = Builder(home, "h", lambda _: None)
    with capture_logs() as logs:
        builder.scan()
        builder.scan()
    (shown,) = [each for each in builder.statuses() if each.worker == "mine"]
    assert (shown.status, "nobody thought of this" in shown.detail) == ("broken", True)
    assert len(builder.fingerprints()) > 0
    assert [each["worker"] for each in logs] == ["mine"]


@pytest.mark.parametrize("text", ["folder\0of nobody", "{deep}"])
def test_folder_that_no_recipe_can_be_read_from_hides_no_other(tmp_path: Path, home: StackHome, text: str):
    known = find_recipes(home)
    deep = make_worker(tmp_path / "deep", profiles=f"x = {'[' * 10_000}")
    (home.path / "workers").mkdir()
    (home.path / "workers" / "odd").write_text(text.format(deep=deep))
    assert find_recipes(home) == known != []


def test_environment_of_a_worker_has_nothing_of_ours(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/ours")
    monkeypatch.setenv("MOSAIC_BUS", "ipc:///ours")
    monkeypatch.setenv("VIRTUAL_ENV", "/ours")
    monkeypatch.setenv("CUDA_HOME", "/usr/cuda")
    environment = status(read_recipe(make_worker(tmp_path, profiles="[default]\nenv = {A = 1}\n")), "default")
    found = environment.environ()
    assert not [key for key, value in found.items() if "/ours" in value and key != "PATH"]
    assert (found["CUDA_HOME"], found["A"], found["PYTHONPATH"]) == ("/usr/cuda", "1", str(environment.site))
    assert found["PATH"].startswith(str(environment.venv / "bin"))


def test_libraries_compute_with_the_threads_of_the_run_unless_somebody_says_otherwise(tmp_path: Path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    environment = status(read_recipe(make_worker(tmp_path / "plain", profiles="[default]\n")), "default")
    assert (environment.environ()["OMP_NUM_THREADS"], environment.environ(3)["OMP_NUM_THREADS"]) == ("1", "3")
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert environment.environ(3)["OMP_NUM_THREADS"] == "5"
    set_there = make_worker(tmp_path / "set", profiles="[default]\nenv = {OMP_NUM_THREADS = 7}\n")
    assert status(read_recipe(set_there), "default").environ(3)["OMP_NUM_THREADS"] == "7"


@pytest.mark.parametrize(
    ("system", "simple"),
    [
        ('requires = ["setuptools>=68"]\nbuild-backend = "setuptools.build_meta"', True),
        ('requires = ["setuptools", "wheel"]\nbuild-backend = "setuptools.build_meta"', True),
        ('requires = ["setuptools>=9999"]\nbuild-backend = "setuptools.build_meta"', False),
        ('requires = ["setuptools", "cython"]\nbuild-backend = "setuptools.build_meta"', False),
        ('requires = ["hatchling"]\nbuild-backend = "hatchling.build"', False),
        ('requires = ["setuptools"]\nbuild-backend = "own"\nbackend-path = ["."]', False),
        ('requires = ["not a requirement!"]\nbuild-backend = "setuptools.build_meta"', False),
        ("", False),
    ],
)
def test_only_what_setuptools_alone_can_build_is_built_without_pip(tmp_path: Path, system: str, simple: bool):
    (tmp_path / "pyproject.toml").write_text(f"[build-system]\n{system}\n")
    assert needs_only_setuptools(tmp_path) is simple


TAKES_A_CHECKOUT = "[default]\nupstream = 'lib/algo.py'\n[other]\nlock = 'locks/default.lock'\n"


def make_checkout(folder: Path) -> Path:
    (folder / "lib").mkdir(parents=True)
    (folder / "lib" / "algo.py").write_text("RATE = 1\n")
    return folder


def test_checkout_is_known_to_the_worker_of_a_home_and_changes_its_fingerprint(tmp_path: Path, home: StackHome):
    folder = make_worker(tmp_path / "mine", profiles=TAKES_A_CHECKOUT)
    register(read_recipe(folder), home)
    before = status(recipe_for("mine", home), "default")
    assert "MOSAIC_UPSTREAM" not in before.environ()
    checkout = make_checkout(tmp_path / "checkout")
    remember_upstream("mine", home, checkout)
    for recipe in (recipe_for("mine", home), recipe_for(str(folder), home), *find_recipes(home)):
        if recipe.worker == "mine":
            assert recipe.upstream == checkout
    found = status(recipe_for("mine", home), "default")
    assert found.environ()["MOSAIC_UPSTREAM"] == str(checkout)
    assert (found.venv, found.site == before.site) == (before.venv, False)
    # A profile that declares no upstream gets none.
    other = status(recipe_for("mine", home), "other")
    assert "MOSAIC_UPSTREAM" not in other.environ()
    # Edited code is described again; other files do not matter.
    for name in ("lib/__pycache__/algo.py", ".git/hook.py", "README.md", "venv/lib/module.py", "venv/pyvenv.cfg"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        (checkout / name).write_text("x")
    assert status(recipe_for("mine", home), "default").site == found.site
    (checkout / "lib" / "algo.py").write_text("RATE = 22\n")
    assert status(recipe_for("mine", home), "default").site != found.site
    assert status(recipe_for("mine", home), "other").site == other.site
    remember_upstream("mine", home, None)
    remember_upstream("mine", home, None)
    assert status(recipe_for("mine", home), "default").site == before.site


def test_checkout_that_went_away_is_named_and_does_not_hide_the_worker(tmp_path: Path, home: StackHome):
    register(read_recipe(make_worker(tmp_path / "mine", profiles=TAKES_A_CHECKOUT)), home)
    remember_upstream("mine", home, tmp_path / "gone")
    with pytest.raises(UpstreamError, match=r"gone is not a folder  \(mosaic workers install mine --upstream PATH"):
        status(recipe_for("mine", home), "default")
    (tmp_path / "gone").mkdir()
    builder = Builder(home, "h", lambda _: None)
    builder.scan()
    shown = {each.profile: each for each in builder.statuses() if each.worker == "mine"}
    assert (shown["default"].status, shown["other"].status) == ("broken", "available")
    assert "gone has no lib/algo.py" in shown["default"].detail
    with pytest.raises(CommandRefusedError) as refused:
        builder.get("mine", "default")
    assert refused.value.code == "unusable_environment"


def test_checkout_is_cloned_from_a_git_url_once_for_each_commit(tmp_path: Path, home: StackHome):
    origin = make_checkout(tmp_path / "origin")

    def git(*words: str) -> None:
        who = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
        subprocess.run(["git", "-C", str(origin), *who, *words], check=True, capture_output=True)

    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "-m", "first")
    first = fetch_upstream(origin.as_uri(), "mine", home)
    assert (first / "lib" / "algo.py").read_text() == "RATE = 1\n"
    assert first.is_relative_to(home.path)
    assert fetch_upstream(origin.as_uri(), "mine", home) == first
    (origin / "lib" / "algo.py").write_text("RATE = 2\n")
    git("commit", "--quiet", "-am", "second")
    second = fetch_upstream(origin.as_uri(), "mine", home)
    assert (second / "lib" / "algo.py").read_text() == "RATE = 2\n"
    assert (first / "lib" / "algo.py").read_text() == "RATE = 1\n"
    assert sorted((home.path / "checkouts").iterdir()) == sorted([first, second])


def test_checkout_that_cannot_be_cloned_says_why(tmp_path: Path, home: StackHome, monkeypatch):
    with pytest.raises(UpstreamError, match=r"cannot clone file:///.*; give the path of a folder"):
        fetch_upstream((tmp_path / "nowhere").as_uri(), "mine", home)
    with pytest.raises(UpstreamError, match=r"cannot clone http://127\.0\.0\.1:9/x: .*give the path of a folder"):
        fetch_upstream("http://127.0.0.1:9/x", "mine", home)
    assert list((home.path / "checkouts").iterdir()) == []
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UpstreamError, match="there is no git on the PATH"):
        fetch_upstream("git@example.org:x/y", "mine", home)
