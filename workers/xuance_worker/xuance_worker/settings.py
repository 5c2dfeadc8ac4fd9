"""XuanCe's own settings: which YAML file an algorithm uses, what it says, and what a config may change in it.

The files are read without importing XuanCe, which takes seconds.
"""

import functools
import importlib.metadata
import importlib.util
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from mosaic_worker.config import near
from mosaic_worker.errors import ConfigError
from mosaic_worker.metadata import AlgorithmCard, Parameter
from xuance_worker.registry import AGENTS, Agent

__all__ = ["SET_BY_WORKER", "algorithm_cards", "find_settings", "override_problem", "read_settings", "upstream_version"]

SET_BY_WORKER = {
    "agent": "give it as algorithm",
    "env_name": "give it as env",
    "env_id": "give it as env_id",
    "env_seed": "give it as seed",
    "seed": "give it as seed",
    "parallels": "give it as parallels",
    "running_steps": "give it as running_steps",
    "device": "give it as device",
    "dl_toolbox": "give it as backend",
    "log_dir": "the run's folder has the logs",
    "model_dir": "the run's folder has the checkpoints",
    "vectorize": "the environments run in the worker's own process",
    "render": "frames are asked for by the fastlane_ fields and record",
    "render_mode": "frames are asked for by the fastlane_ fields and record",
    "logger": "TensorBoard files are always written",
    "wandb_user_name": "TensorBoard files are always written",
    "project_name": "TensorBoard files are always written",
    "distributed_training": "a run is one process",
    "master_port": "a run is one process",
    "runner": "the worker runs the agents itself",
    "eval_interval": "evaluate a checkpoint with mode policy_eval",
    "test_episode": "evaluate a checkpoint with mode policy_eval",
}
"""Keys of XuanCe's settings that a config cannot override, and what to do instead."""
_OPTIONAL = {"use_global_state": False, "use_actions_mask": False, "use_parameter_sharing": True, "use_rnn": False}
"""Keys that XuanCe reads, with a default, although not every file has them."""
_FALLBACKS = {
    True: (("mpe", "simple_spread_v3"),),
    False: (("classic_control", "CartPole-v1"), ("classic_control", "Pendulum-v1"), ("mujoco", "")),
}
"""Whose settings an environment gets that has none of its own, for multi-agent and single-agent algorithms."""
_AGENT_LINE = re.compile(r'^agent:\s*"?(\w+)', re.MULTILINE)
_TYPES = {bool: "bool", int: "int", float: "float", str: "str"}


def upstream_version() -> str | None:
    """The version of XuanCe that is installed; None where there is none."""
    try:
        return importlib.metadata.version("xuance")
    except importlib.metadata.PackageNotFoundError:
        return None


def find_settings(agent: Agent, env: str, env_id: str, *, is_continuous: bool) -> Path:
    """Return the file for an algorithm and an environment, or one made for a similar environment."""
    files = _files().get(agent.listed_as or agent.name, {})
    fallbacks = _FALLBACKS[agent.is_multi]
    if is_continuous and not agent.is_multi:
        fallbacks = (*fallbacks[1:], fallbacks[0])
    for place in ((env, env_id), (env, ""), *fallbacks):
        if place in files:
            return files[place]
    raise ConfigError(f"algorithm: XuanCe ships no settings for {agent.name} that fit {env_id}; give a config_path")


def read_settings(path: Path) -> dict[str, Any]:
    """Read XuanCe's basic settings and, on top of them, those of a file."""
    return {**_OPTIONAL, **_load(_folder() / "basic.yaml"), **_load(path)}


def override_problem(known: Mapping[str, Any], name: str, value: Any) -> str:
    """Say why a key cannot be set to a value; empty if it can."""
    if name in SET_BY_WORKER:
        return f"it cannot be overridden: {SET_BY_WORKER[name]}"
    if name not in known:
        return f"the algorithm has no such setting{near(name, list(known))}"
    default = known[name]
    if default is None or _fits(value, default):
        return ""
    return f"it must be like its default, {default!r}"


def _fits(value: Any, default: Any) -> bool:
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    if isinstance(default, float):
        return isinstance(value, int | float)
    if isinstance(default, int):
        # A default such as `weight_decay: 0` stands for any number.
        return isinstance(value, int) or (isinstance(value, float) and (value.is_integer() or default == 0))
    return isinstance(value, type(default))


@functools.cache
def algorithm_cards() -> list[AlgorithmCard]:
    """List every agent of XuanCe with the hyperparameters of its own settings."""
    return [_card(agent) for agent in AGENTS.values()]


def _card(agent: Agent) -> AlgorithmCard:
    parameters: tuple[Parameter, ...] = ()
    if not agent.fails:
        env, env_id = _FALLBACKS[agent.is_multi][0]
        is_continuous = agent.actions == "continuous"
        path = find_settings(agent, "" if is_continuous else env, env_id, is_continuous=is_continuous)
        parameters = tuple(_parameters(read_settings(path)))
    return AlgorithmCard(
        name=agent.name,
        family=agent.family,
        actions="discrete, continuous" if agent.actions == "both" else agent.actions,
        runs=not agent.fails,
        profiles=() if agent.fails else ("default",),
        needs=agent.fails,
        source=f"xuance {upstream_version()}",
        parameters=parameters,
    )


def _parameters(settings: Mapping[str, Any]) -> Iterator[Parameter]:
    for name, default in settings.items():
        if name not in SET_BY_WORKER and type(default) in _TYPES:
            yield Parameter.model_validate({"name": name, "type": _TYPES[type(default)], "default": default})


@functools.cache
def _folder() -> Path:
    spec = importlib.util.find_spec("xuance")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("xuance is not installed in this environment")
    return Path(spec.submodule_search_locations[0]) / "configs"


@functools.cache
def _files() -> dict[str, dict[tuple[str, str], Path]]:
    """Find each agent's files, by environment and its id; a file for all ids of an environment has none."""
    found: dict[str, dict[tuple[str, str], Path]] = {}
    folder = _folder()
    for path in sorted(folder.glob("*/**/*.yaml")):
        agent = _AGENT_LINE.search(path.read_text(encoding="utf-8"))
        if agent is not None:
            _, *rest = path.relative_to(folder).with_suffix("").parts
            env, env_id = (rest[0], "/".join(rest[1:]))
            found.setdefault(agent[1], {})[env, env_id] = path
    return found


def _load(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"config_path: {str(path)!r} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"config_path: {str(path)!r} has no settings: a mapping of keys to values is needed")
    return content
