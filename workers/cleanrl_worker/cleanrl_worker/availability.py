"""The algorithms that can run here, their source, and what is missing for the others."""

import ast
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import cleanrl_worker
from cleanrl_worker.hyperparameters import Style, read_arguments
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY, Algorithm, Upstream
from mosaic_worker.errors import ConfigError
from mosaic_worker.metadata import AlgorithmCard, Parameter

__all__ = ["UPSTREAM", "Script", "algorithm_cards", "find_script", "profile", "upstream_version"]

UPSTREAM = "MOSAIC_UPSTREAM"
# Arguments that a script gets from fields of the config, and that algo_params may therefore not set.
FROM_CONFIG = {
    "exp_name": "algo",
    "env_id": "env_id",
    "gym_id": "env_id",
    "total_timesteps": "total_timesteps",
    "seed": "seed",
    "cuda": "extras.cuda",
    "track": "extras.track_wandb",
    "prod_mode": "extras.track_wandb",
    "wandb_project_name": "extras.wandb_project_name",
    "wandb_entity": "extras.wandb_entity",
    "capture_video": "extras.capture_video",
    "checkpoint_every": "extras.checkpoint_every",
}
_GET_A_CHECKOUT = "mosaic workers install cleanrl --upstream PATH"
_CANNOT_RUN = {
    **dict.fromkeys(
        ("qdagger_dqn_atari_impalacnn", "qdagger_dqn_atari_jax_impalacnn"),
        "downloads a trained teacher from the Hugging Face Hub, which workers do not do",
    ),
    **dict.fromkeys(
        ("ppo_atari_envpool_xla_jax", "ppo_atari_envpool_xla_jax_scan"),
        "was tried, and does not run with the versions that can be installed",
    ),
}
# Packages that scripts with this word in their name import, if there is no checkout to read.
_PACKAGES = {"jax": "jax", "envpool": "envpool", "procgen": "procgen", "pettingzoo": "supersuit"}


@dataclass(frozen=True)
class Script:
    """A script that can run here."""

    upstream: Upstream
    module: str
    path: Path
    style: Style
    # All arguments of the script, under its own names.
    parameters: tuple[Parameter, ...]
    version: str

    @property
    def hyperparameters(self) -> tuple[Parameter, ...]:
        """The names that `algo_params` may have: all but those set by fields of the config."""
        return tuple(each for each in self.parameters if each.name not in FROM_CONFIG)

    @property
    def source(self) -> str:
        """Origin and version of the code."""
        return f"{_NAMES[self.upstream]} {self.version}"


_NAMES: Mapping[Upstream, str] = {"ours": "cleanrl_worker", "checkout": "checkout", "legacy": "cleanrl"}


def profile() -> str:
    """The profile of this process: only `default` has gymnasium."""
    return "default" if importlib.util.find_spec("gymnasium") else "legacy"


def find_script(algo: str) -> Script:
    """Find the script of an algorithm in this environment; ConfigError says what is missing."""
    algorithm = DEFAULT_ALGO_REGISTRY[algo]
    if algo in _CANNOT_RUN:
        raise ConfigError(f"{algo} {_CANNOT_RUN[algo]}")
    if profile() == "legacy":
        return _legacy(algorithm)
    return _ours(algorithm) if "ours" in algorithm.upstreams else _of_checkout(algorithm)


def _legacy(algorithm: Algorithm) -> Script:
    spec = importlib.util.find_spec("cleanrl")
    if "legacy" not in algorithm.upstreams or spec is None or not spec.submodule_search_locations:
        _refuse_missing(algorithm.name, _packages_by_name(algorithm.name))
        raise ConfigError(f"{algorithm.name} runs in profile default, with a checkout: {_GET_A_CHECKOUT}")
    path = Path(spec.submodule_search_locations[0]) / f"{algorithm.name}.py"
    return _script(algorithm, "legacy", path, importlib.metadata.version("cleanrl"))


def _ours(algorithm: Algorithm) -> Script:
    path = Path(cleanrl_worker.__file__).parents[1] / f"{algorithm.module('ours').replace('.', '/')}.py"
    return _script(algorithm, "ours", path, cleanrl_worker.__version__)


def _of_checkout(algorithm: Algorithm) -> Script:
    name = algorithm.name
    folder = _checkout()
    if folder is None:
        if "legacy" in algorithm.upstreams:
            here = f"or here with a checkout: {_GET_A_CHECKOUT}"
            raise ConfigError(f"{name} runs in profile legacy (mosaic submit --profile legacy …), {here}")
        _refuse_missing(name, _packages_by_name(name))
        raise ConfigError(f"{name} runs with a checkout of CleanRL: {_GET_A_CHECKOUT}")
    path = folder / "cleanrl" / f"{name}.py"
    if not path.is_file():
        raise ConfigError(f"{name} needs {path}, which is not there; give another checkout: {_GET_A_CHECKOUT}")
    _refuse_missing(name, _missing(path, folder, seen=set()))
    return _script(algorithm, "checkout", path, upstream_version() or "")


def _script(algorithm: Algorithm, upstream: Upstream, path: Path, version: str) -> Script:
    try:
        style, parameters = read_arguments(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{algorithm.name}: the arguments of {path} cannot be read: {error}") from None
    return Script(upstream, algorithm.module(upstream), path, style, parameters, version)


def _refuse_missing(name: str, packages: Iterable[str]) -> None:
    if missing := sorted(set(packages)):
        raise ConfigError(f"{name} needs {', '.join(missing)}, which no profile of this worker has")


def _packages_by_name(name: str) -> list[str]:
    wanted = [package for word, package in _PACKAGES.items() if word in name]
    return [package for package in wanted if importlib.util.find_spec(package) is None]


def _missing(path: Path, folder: Path, seen: set[Path]) -> Iterator[str]:
    """Yield packages that a script, or a module of its checkout, imports at the top and that are not installed."""
    seen.add(path)
    for name in _imports(path):
        local = folder / f"{name.replace('.', '/')}.py"
        if local.is_file():
            if local not in seen:
                yield from _missing(local, folder, seen)
        elif not _is_there(name.partition(".")[0], folder):
            yield name.partition(".")[0]


def _is_there(package: str, folder: Path) -> bool:
    return package in sys.stdlib_module_names or (folder / package).is_dir() or bool(importlib.util.find_spec(package))


@functools.cache
def _imports(path: Path) -> tuple[str, ...]:
    """Return the modules that a file imports at the top; cached, since scripts share modules."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return ()  # reading its arguments reports the error
    names: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.append(node.module)
    return tuple(names)


def _checkout() -> Path | None:
    given = os.environ.get(UPSTREAM)
    return Path(given) if given else None


def upstream_version() -> str | None:
    """Return the version of CleanRL: the release in `legacy`, else the commit of the checkout, or None."""
    if profile() == "legacy":
        try:
            return importlib.metadata.version("cleanrl")
        except importlib.metadata.PackageNotFoundError:
            return None
    folder = _checkout()
    return None if folder is None else _version_of(folder)


@functools.cache
def _version_of(folder: Path) -> str:
    """Return the version of a checkout; cached, so that later edits do not change it during a run."""
    return _commit(folder) or _digest(folder)


def _commit(folder: Path) -> str:
    """Return the commit of a checkout, with `+dirty` if files were edited; empty without git."""
    if not (folder / ".git").exists():
        return ""  # git would describe an enclosing repository
    words = ["git", "-C", str(folder), "describe", "--always", "--match=", "--abbrev=7", "--dirty=+dirty"]
    try:
        found = subprocess.run(words, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""


def _digest(folder: Path) -> str:
    """Return a version for a folder that is not under git."""
    digest = hashlib.sha256()
    for path in sorted((folder / "cleanrl").glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return f"files-{digest.hexdigest()[:7]}"


@functools.cache
def algorithm_cards() -> tuple[AlgorithmCard, ...]:
    """Return a card for every algorithm of the registry."""
    return tuple(_card(algorithm) for algorithm in DEFAULT_ALGO_REGISTRY.values())


def _card(algorithm: Algorithm) -> AlgorithmCard:
    about = {"name": algorithm.name, "family": algorithm.family, "actions": algorithm.actions}
    try:
        script = find_script(algorithm.name)
    except ConfigError as error:
        return AlgorithmCard(**about, runs=False, profiles=_profiles(algorithm), needs=str(error))
    return AlgorithmCard(
        **about, runs=True, profiles=_profiles(algorithm), source=script.source, parameters=script.hyperparameters
    )


def _profiles(algorithm: Algorithm) -> tuple[str, ...]:
    if algorithm.name in _CANNOT_RUN or _packages_by_name(algorithm.name):
        return ()
    homes = {"ours": "default", "checkout": "default", "legacy": "legacy"}
    return tuple(dict.fromkeys(homes[upstream] for upstream in algorithm.upstreams))
