"""The command line of an upstream script, made from the config.

Scripts of a checkout parse it with tyro (`--cuda`, `--no-cuda`), those of cleanrl 0.4.8 with argparse
(`--cuda False`). A script gets only the config's fields that it has an argument for.
"""

from collections.abc import Mapping
from typing import Any

from cleanrl_worker.availability import Script
from cleanrl_worker.config import CleanRLWorkerConfig
from mosaic_worker.metadata import Parameter

__all__ = ["arguments_of", "values_of"]


def arguments_of(script: Script, config: CleanRLWorkerConfig) -> list[str]:
    """Return the arguments for a script; the config has validated its algo_params."""
    given = {**_from_fields(config), **config.extras.algo_params}
    arguments = []
    for parameter in script.parameters:
        value = given.get(parameter.name)
        if value is not None:
            arguments += _argument(parameter, value, script.style)
    return arguments


def values_of(
    script: Script, config: CleanRLWorkerConfig, saved: Mapping[str, Any] | None = None
) -> dict[str, bool | int | float | str | None]:
    """Return every hyperparameter with the value that counts: the config's, else the checkpoint's, else the default."""
    values = {}
    for each in script.hyperparameters:
        value = {**(saved or {}), **config.extras.algo_params}.get(each.name, each.default)
        values[each.name] = int(value) if each.type == "int" and value is not None else value
    return values


def _from_fields(config: CleanRLWorkerConfig) -> dict[str, Any]:
    extras = config.extras
    return {
        "env_id": config.env_id,
        "gym_id": config.env_id,
        "total_timesteps": config.total_timesteps,
        "seed": config.seed,
        "cuda": extras.wants_cuda,
        "capture_video": extras.capture_video,
        "track": extras.track_wandb,
        "prod_mode": extras.track_wandb,
        "wandb_project_name": extras.wandb_project_name,
        "wandb_entity": extras.wandb_entity,
    }


def _argument(parameter: Parameter, value: Any, style: str) -> list[str]:
    name = parameter.name.replace("_", "-")
    if isinstance(value, bool) and style == "tyro":
        return [f"--{name}" if value else f"--no-{name}"]
    text = str(int(value) if parameter.type == "int" else value)  # JSON and YAML read 1e6 as a float
    # A value that begins with a dash would be parsed as an option.
    return [f"--{name}={text}"] if text.startswith("-") else [f"--{name}", text]
