"""The command line of an upstream script: what the config says, in the words of that script.

Scripts of a checkout read their arguments with tyro (`--cuda`, `--no-cuda`), those of cleanrl 0.4.8 with argparse
(`--cuda False`). What a script does not know is refused before it starts.
"""

from typing import Any

from cleanrl_worker.availability import Script
from cleanrl_worker.config import CleanRLWorkerConfig
from mosaic_worker.config import near
from mosaic_worker.errors import ConfigError
from mosaic_worker.metadata import Parameter

__all__ = ["arguments_of"]

_FIELDS = {
    "env_id": "env_id",
    "gym_id": "env_id",
    "total_timesteps": "total_timesteps",
    "seed": "seed",
    "cuda": "extras.cuda",
    "capture_video": "extras.capture_video",
    "track": "extras.track_wandb",
    "prod_mode": "extras.track_wandb",
    "wandb_project_name": "extras.wandb_project_name",
    "wandb_entity": "extras.wandb_entity",
}
"""Arguments of scripts that are fields of the config, and so are not given as hyperparameters."""
_TYPES = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "a text"}


def arguments_of(script: Script, config: CleanRLWorkerConfig) -> list[str]:
    """Return the arguments with which a script does what the config says; ConfigError names each that it refuses."""
    known = {_name(parameter.name): parameter for parameter in script.parameters}
    given = {**_from_fields(config), **_from_algo_params(config, known)}
    arguments = []
    for name, value in given.items():
        if name in known and value is not None:
            arguments += _argument(known[name], value, script.style)
    return arguments


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


def _from_algo_params(config: CleanRLWorkerConfig, known: dict[str, Parameter]) -> dict[str, Any]:
    values, problems = {}, []
    free = [name for name in known if name not in _FIELDS]
    for given, value in config.extras.algo_params.items():
        where, name = f"extras.algo_params.{given}", _name(given)
        if name in _FIELDS:
            problems.append(f"{where}: give it as {_FIELDS[name]}")
        elif name not in known:
            hint = near(name, free) or f" (it has {', '.join(sorted(free))})"
            problems.append(f"{where}: unknown to {config.algo}, given {value!r}{hint}")
        elif value is not None:
            values[name] = _converted(known[name], value)
            if values[name] is None:
                wanted = f"{config.algo} wants {_TYPES[known[name].type]}, such as {known[name].default!r}"
                problems.append(f"{where}: {value!r} is not allowed: {wanted}")
    if problems:
        raise ConfigError(problems)
    return values


def _converted(parameter: Parameter, value: Any) -> Any:
    """Return a value of the type that a script wants, or None if this is not one."""
    match parameter.type:
        case "bool":
            return value if isinstance(value, bool) else None
        case "str":
            return value if isinstance(value, str) else None
        case "int":  # JSON and YAML make a float of 1e6
            is_whole = not isinstance(value, bool | str) and float(value).is_integer()
            return int(value) if is_whole else None
        case "float":
            return None if isinstance(value, bool | str) else float(value)


def _argument(parameter: Parameter, value: Any, style: str) -> list[str]:
    name = parameter.name.replace("_", "-")
    if isinstance(value, bool) and style == "tyro":
        return [f"--{name}" if value else f"--no-{name}"]
    text = str(value)
    # A value that begins with a dash would be taken for an option.
    return [f"--{name}={text}"] if text.startswith("-") else [f"--{name}", text]


def _name(name: str) -> str:
    return name.replace("-", "_")
