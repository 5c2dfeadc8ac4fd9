"""What a run trains: the agent, the environment, and every setting that XuanCe gets, resolved and checked."""

import math
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mosaic_worker.errors import ConfigError
from xuance_worker.config import XuanCeWorkerConfig
from xuance_worker.environments import Spaces, check_task, family_of, spaces_of
from xuance_worker.registry import Agent
from xuance_worker.settings import find_settings, override_problem, read_settings

__all__ = ["Arguments", "Task", "task_of"]

_RATES = ("learning_rate_actor", "learning_rate_critic")
_KINDS = ("Gaussian", "Categorical")
_VECTORIZERS = {"Atari": "Dummy_Atari"}


class Arguments(Namespace):
    """XuanCe's settings as its agents want them.

    COMA's learner sets `huber_delta` to None, which torch 2.13 refuses. It does not use the value.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a value, but no None for `huber_delta`."""
        super().__setattr__(name, 1.0 if name == "huber_delta" and value is None else value)


@dataclass(frozen=True)
class Task:
    """A resolved run."""

    agent: Agent
    env_id: str
    spaces: Spaces
    settings: dict[str, Any]
    """Every setting but those that depend on the run: seed, steps, device and folders."""
    source: str
    """The file that the settings come from."""
    notes: tuple[str, ...] = ()
    """What was changed and people should know of."""

    def arguments(self, seed: int, steps: int, device: str, log_dir: Path) -> Arguments:
        """Return the settings for one process."""
        is_multi = bool(self.spaces.agents)
        vectorizer = "DummyVecMultiAgentEnv" if is_multi else _VECTORIZERS.get(self.spaces.wrapper, "DummyVecEnv")
        return Arguments(
            **{
                **self.settings,
                "agent": self.agent.name,
                "env_name": self.spaces.wrapper,
                "env_id": self.env_id,
                "seed": seed,
                "env_seed": seed,
                "running_steps": steps,
                "device": device,
                "dl_toolbox": "torch",
                "logger": "tensorboard",
                "log_dir": str(log_dir),
                "model_dir": str(log_dir),
                "vectorize": vectorizer,
                "render": False,
                "render_mode": None,
                "distributed_training": False,
            }
        )


def task_of(config: XuanCeWorkerConfig) -> Task:
    """Resolve a config; ConfigError with one line per problem."""
    agent, env_id = config.agent, config.env_id
    env = family_of(config.env, env_id)
    notes = [] if agent.name.lower() == (config.method or config.algorithm).lower() else [_renamed(config, agent)]
    spaces = None if agent.is_multi else spaces_of(env, env_id, is_continuous=False)
    if spaces is not None:
        check_task(agent, env_id, spaces, {})
    is_continuous = spaces.is_continuous if spaces is not None else agent.actions == "continuous"
    path = Path(config.config_path or find_settings(agent, env, env_id, is_continuous=is_continuous))
    settings = read_settings(path)
    named = settings.get("agent")
    if config.config_path and named and str(named).lower() not in {agent.name.lower(), agent.listed_as.lower()}:
        raise ConfigError(f"config_path: {str(path)!r} has settings of {named}, not of {agent.name}")
    problems = [
        f"overrides.{name}: {value!r} is not allowed: {why}"
        for name, value in config.overrides.items()
        if (why := override_problem(settings, name, value))
    ]
    if problems:
        raise ConfigError(problems)
    settings |= config.overrides
    if config.overrides.get("use_rnn"):
        _check_recurrent(agent, settings)
    if spaces is None:
        spaces = spaces_of(env, env_id, is_continuous=bool(settings.get("continuous_action", is_continuous)))
    for name, value in check_task(agent, env_id, spaces, settings).items():
        if config.overrides.get(name, value) != value:
            raise ConfigError(f"overrides.{name}: must be {value}, because the agents of {env_id} differ")
        if settings.get(name) != value:
            settings[name] = value
            notes.append(f"{name} is {value}, because the agents of {env_id} see or do different things")
    settings |= _fields(config, settings)
    settings["continuous_action"] = spaces.is_continuous
    if "policy" not in config.overrides:
        settings["policy"] = _policy(str(settings.get("policy") or ""), is_continuous=spaces.is_continuous)
    if settings.get("use_rnn") and settings["policy"] == "Gaussian_MAAC_Policy":
        notes.append("XuanCe's recurrent policy for continuous actions drops its state: it acts as if it had no memory")
    if agent.name == "PPO_KL" and "learner" not in config.overrides:
        settings["learner"] = "PPOKL_Learner"  # XuanCe's file is that of PPO.
    source = str(path) if config.config_path else "/".join(path.parts[path.parts.index("configs") :])
    return Task(agent, env_id, spaces, settings, source, tuple(notes))


def _check_recurrent(agent: Agent, settings: Mapping[str, Any]) -> None:
    if "rnn" not in settings:
        raise ConfigError(f"overrides.use_rnn: XuanCe's settings of {agent.name} have no recurrent network")
    if "RNN" not in str(settings.get("representation")):
        raise ConfigError("overrides.use_rnn: a recurrent policy needs overrides.representation: Basic_RNN, too")


def _renamed(config: XuanCeWorkerConfig, agent: Agent) -> str:
    return f"{config.method or config.algorithm} is {agent.name} in XuanCe"


def _fields(config: XuanCeWorkerConfig, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What the config's own fields set, under XuanCe's names."""
    changed: dict[str, Any] = {}
    if config.parallels is not None:
        changed["parallels"] = config.parallels
    if config.learning_rate is not None:
        names = [name for name in _RATES if name in settings] or ["learning_rate"]
        changed |= dict.fromkeys(names, config.learning_rate)
    if config.batch_size is not None:
        changed |= _batch(config.batch_size, config, settings)
    for name in ("learning_rate", "batch_size"):
        if getattr(config, name) is not None and name in config.overrides:
            raise ConfigError(f"{name}: it is in overrides too; give it once")
    return changed


def _batch(size: int, config: XuanCeWorkerConfig, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Set the size of a batch. On-policy algorithms divide their buffer into minibatches instead."""
    if "n_minibatch" not in settings:
        return {"batch_size": size}
    if clash := {"n_minibatch", "buffer_size", "horizon_size"} & config.overrides.keys():
        raise ConfigError(f"batch_size: on-policy it follows from the buffer; leave out overrides.{min(clash)}")
    if "horizon_size" in settings:  # single-agent: steps of each environment
        envs = config.parallels or settings["parallels"]
        parts = max(1, math.ceil(settings["horizon_size"] * envs / size))
        return {"n_minibatch": parts, "horizon_size": math.ceil(parts * size / envs)}
    parts = max(1, math.ceil(settings["buffer_size"] / size))
    return {"n_minibatch": parts, "buffer_size": parts * size}


def _policy(name: str, *, is_continuous: bool) -> str:
    """Exchange a policy for continuous actions by its counterpart for discrete ones, and the other way round."""
    wanted, other = _KINDS if is_continuous else _KINDS[::-1]
    return name.replace(other, wanted, 1) if name.startswith(other) else name
