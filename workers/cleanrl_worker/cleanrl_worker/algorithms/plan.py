"""The plan of a training: its settings, its first and last step, the checkpoint it resumes from."""

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args, get_type_hints

import torch

from cleanrl_worker import checkpoints
from cleanrl_worker.checkpoints import Checkpoint
from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.model_files import find_model
from mosaic_worker.context import RunContext
from mosaic_worker.errors import ConfigError

__all__ = ["Plan", "plan_of", "use_threads"]

Args = TypeVar("Args")

_AT_LEAST_ONE = ("num_envs", "num_steps", "num_minibatches", "update_epochs")
_FRACTIONS = ("gamma", "gae_lambda")
_POSITIVE = ("learning_rate", "clip_coef", "max_grad_norm")


@dataclass(frozen=True)
class Plan(Generic[Args]):
    """One training."""

    args: Args
    env_id: str
    step: int
    target: int
    checkpoint: Checkpoint | None = None
    checkpoint_path: str = ""
    field: str = ""
    """The config field that names the checkpoint."""


def use_threads() -> None:
    """Let torch use one thread, or as many as OMP_NUM_THREADS says, which is set for a run with more CPUs.

    By default torch uses one per core. Most networks are so small that waking a second thread costs more than it
    gains, and runs on one machine must not take each other's cores.
    """
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or 1))


def plan_of(context: RunContext[CleanRLWorkerConfig], settings: type[Args], first_env_id: str = "") -> Plan[Args]:
    """Make the plan of a run. `first_env_id` is the environment of a curriculum's first stage, if there is one."""
    config = context.config
    path, field = _checkpoint_path(context)
    if path is not None:
        path = find_model(path, field)
    saved = checkpoints.load(path, field) if path is not None else None
    env_id = first_env_id or config.env_id
    if saved is None:
        if not env_id:
            raise ConfigError("env_id: missing; give it in the config")
        args = args_of(settings, config, {}, env_id, 0)
        return Plan(args, env_id, step=0, target=config.total_timesteps)
    about = saved.about
    if env_id and env_id != about.env_id:
        raise ConfigError(
            f"{field}: {str(path)!r} was trained on {about.env_id}, but env_id is {env_id}; leave env_id out, or"
            " give the checkpoint of a training on it"
        )
    # A new attempt keeps the budget of the run; resume_training asks for more steps.
    target = about.target if context.resume is not None else about.step + config.total_timesteps
    args = args_of(settings, config, about.args, about.env_id, target)
    return Plan(args, about.env_id, about.step, target, saved, str(path), field)


def _checkpoint_path(context: RunContext[CleanRLWorkerConfig]) -> tuple[Path | None, str]:
    if context.resume is not None:
        return context.resume.path, "resume.path"
    if context.config.mode == "resume_training":
        path, field = context.config.extras.resumed
        return Path(path), field
    return None, ""


def args_of(settings: type[Args], config: CleanRLWorkerConfig, saved: dict[str, Any], env_id: str, target: int) -> Args:
    """Return the settings; in order of precedence: the config, algo_params, the checkpoint, the defaults."""
    hints = get_type_hints(settings)
    values = {name: value for name, value in saved.items() if name in hints}
    problems = []
    for name, value in config.extras.algo_params.items():  # the config has validated names and types
        try:
            values[name] = _value(hints[name], value)
            _check(name, values[name])
        except ValueError as error:
            problems.append(f"extras.algo_params.{name}: {value!r} is not allowed: {error}")
    if problems:
        raise ConfigError(problems)
    extras = config.extras
    values |= {
        "env_id": env_id,
        "seed": config.seed,
        "total_timesteps": target or config.total_timesteps,
        "cuda": extras.wants_cuda,
        "track": extras.track_wandb,
        "wandb_project_name": extras.wandb_project_name,
        "wandb_entity": extras.wandb_entity,
        "capture_video": extras.capture_video,
    }
    return settings(**{field.name: values[field.name] for field in fields(settings) if field.name in values})  # type: ignore[arg-type]


def _value(hint: Any, value: Any) -> Any:
    """Convert a number to the type of a setting: JSON and YAML read 1e3 as a float, and 1 may mean 1.0."""
    kind = next(iter(get_args(hint)), hint)
    return kind(value) if kind in {int, float} and value is not None else value


def _check(name: str, value: Any) -> None:
    if name in _AT_LEAST_ONE and value < 1:
        raise ValueError("give 1 or more")
    if name in _FRACTIONS and not 0 <= value <= 1:
        raise ValueError("give a number from 0 to 1")
    if name in _POSITIVE and not value > 0:
        raise ValueError("give a number above 0")
