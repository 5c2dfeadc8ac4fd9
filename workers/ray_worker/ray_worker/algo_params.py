"""Hyperparameters of RLlib's algorithms: a versioned JSON Schema for each, read from its AlgorithmConfig class.

What `AlgorithmConfig.training()` takes, in the class and its bases, is what `algo_params` may hold, with RLlib's own
types, defaults and descriptions. A few settings of sampling and reporting are added.
"""

import functools
import importlib
import inspect
import re
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model

from mosaic_worker.config import describe, near
from mosaic_worker.errors import ConfigError
from mosaic_worker.metadata import AlgorithmCard, Parameter
from ray_worker.config import ALGORITHMS, Algorithm

__all__ = ["A2C_NOTE", "A2C_SETTINGS", "algorithm_cards", "check_params", "config_class", "schema_of"]

SCHEMA_VERSION = 1
_MORE = {
    "env_runners": ("rollout_fragment_length", "batch_mode"),
    "reporting": ("min_time_s_per_iteration", "min_sample_timesteps_per_iteration"),
}
_LEFT_OUT = ("model", "optimizer", "learner_class", "learner_connector", "before_learn_on_batch", "train_batch_size")
"""Settings that are given elsewhere, take code, or belong to RLlib's old API stack."""
_OLD = re.compile(r"^_|_schedule$")
_ENTRY = re.compile(r"^\s{12}(\w+): ")
A2C_SETTINGS: dict[str, Any] = {
    "num_epochs": 1,
    "minibatch_size": None,
    "use_kl_loss": False,
    "clip_param": 1e6,
    "vf_clip_param": 1e9,
    "lambda_": 1.0,
}
"""What makes A2C of PPO: one pass over each batch, no clipping, no KL penalty, plain n-step returns."""
A2C_NOTE = (
    "RLlib has no A2C any more: this is PPO reduced to it, with one epoch per batch, no clipping and no KL penalty"
)
_FAMILIES = {
    "PPO": ("on-policy actor-critic", "discrete, continuous"),
    "A2C": ("on-policy actor-critic, a reduced PPO", "discrete, continuous"),
    "IMPALA": ("asynchronous actor-critic", "discrete, continuous"),
    "APPO": ("asynchronous PPO", "discrete, continuous"),
    "DQN": ("off-policy Q-learning", "discrete"),
    "SAC": ("off-policy actor-critic", "discrete, continuous"),
}
_TYPES = {bool: "bool", int: "int", float: "float", str: "str"}


def config_class(algorithm: Algorithm) -> Any:
    """RLlib's AlgorithmConfig class of an algorithm."""
    name = "PPO" if algorithm == "A2C" else algorithm
    return getattr(importlib.import_module(f"ray.rllib.algorithms.{name.lower()}"), f"{name}Config")


@functools.cache
def _model(algorithm: Algorithm) -> type[BaseModel]:
    """A pydantic model of the settings."""
    kind = config_class(algorithm)
    defaults, fields = kind(), {}
    for method, wanted in (("training", ()), *_MORE.items()):
        for base in kind.__mro__:
            function = base.__dict__.get(method)
            if function is None:
                continue
            helps = _helps(function.__doc__ or "")
            for name, parameter in inspect.signature(function).parameters.items():
                usable = name in wanted if wanted else not _OLD.search(name) and name not in _LEFT_OUT
                if usable and name not in fields and parameter.annotation is not parameter.empty:
                    default = (
                        A2C_SETTINGS.get(name, getattr(defaults, name, None))
                        if algorithm == "A2C"
                        else getattr(defaults, name, None)
                    )
                    fields[name] = (
                        _fitting(parameter.annotation, default),
                        Field(default, description=helps.get(name, "")),
                    )
    return create_model(
        f"{algorithm}Params", __config__=ConfigDict(extra="forbid", arbitrary_types_allowed=True), **fields
    )  # type: ignore[call-overload, no-any-return]


def _fitting(annotation: Any, default: Any) -> Any:
    """RLlib's annotation; where its own default does not fit it, the default's type is allowed, too."""
    try:
        TypeAdapter(annotation).validate_python(default, strict=not isinstance(default, int))
    except ValidationError:
        return annotation | (list[Any] if isinstance(default, list | tuple) else type(default))
    return annotation


def _helps(docstring: str) -> dict[str, str]:
    """The first sentence of each entry under `Args:`."""
    found: dict[str, list[str]] = {}
    name = ""
    for line in docstring.partition("Args:")[2].partition("Returns:")[0].splitlines():
        if match := _ENTRY.match(line):
            name = match[1]
            found[name] = [line.split(":", 1)[1].strip()]
        elif name:
            found[name].append(line.strip())
    return {name: re.split(r"(?<=[.!?])\s", " ".join(lines).strip())[0] for name, lines in found.items()}


def schema_of(algorithm: Algorithm) -> dict[str, Any]:
    """The JSON Schema of an algorithm's hyperparameters, with the version of RLlib that it was read from."""
    import ray  # noqa: PLC0415 - takes a second

    schema = _model(algorithm).model_json_schema()
    return {
        **schema,
        "$id": f"mosaic:ray/{algorithm}/{ray.__version__}/{SCHEMA_VERSION}",
        "title": f"{algorithm} of RLlib {ray.__version__}",
        "description": A2C_NOTE if algorithm == "A2C" else f"{config_class(algorithm).__name__}.training()",
        "version": ray.__version__,
    }


def check_params(algorithm: Algorithm, given: dict[str, Any]) -> dict[str, Any]:
    """Return hyperparameters that RLlib takes; ConfigError with one line per problem."""
    model = _model(algorithm)
    known = sorted(model.model_fields)
    problems = [
        f"training.algo_params.{name}: {algorithm} has no such setting{near(name, known)} (mosaic workers describe ray)"
        for name in given
        if name not in known
    ]
    if not problems:
        try:
            return model.model_validate(given).model_dump(include=set(given))
        except ValidationError as error:
            problems = [f"training.algo_params.{describe(model, problem)}" for problem in error.errors()]
    raise ConfigError(problems)


@functools.cache
def algorithm_cards() -> list[AlgorithmCard]:
    """List every algorithm with its hyperparameters."""
    import ray  # noqa: PLC0415 - takes a second

    return [
        AlgorithmCard(
            name=name,
            family=_FAMILIES[name][0],
            actions=_FAMILIES[name][1],
            runs=True,
            profiles=("default",),
            source=f"ray {ray.__version__}" + (" (PPO, reduced)" if name == "A2C" else ""),
            parameters=tuple(_parameters(name)),
        )
        for name in ALGORITHMS
    ]


def _parameters(algorithm: Algorithm) -> list[Parameter]:
    found = []
    for name, field in _model(algorithm).model_fields.items():
        kinds = {kind for kind in _leaves(field.annotation) if kind in _TYPES}
        kind = type(field.default) if type(field.default) in kinds else next(iter(kinds), None)
        if kind is not None:
            default = field.default if isinstance(field.default, kind) else None
            found.append(Parameter(name=name, type=_TYPES[kind], default=default, help=field.description or ""))  # type: ignore[arg-type]
    return found


def _leaves(annotation: Any) -> list[Any]:
    """The plain types in a union."""
    return [leaf for part in get_args(annotation) for leaf in _leaves(part)] if _is_union(annotation) else [annotation]


def _is_union(annotation: Any) -> bool:
    return str(get_origin(annotation)) in {"typing.Union", "<class 'types.UnionType'>"}
