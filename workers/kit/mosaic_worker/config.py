"""A worker's config: a pydantic model, loaded from the JSON file that `--config` names.

The file is either flat (its keys are the model's fields) or nested, as the platform writes it: the fields lie at
`metadata.worker.config`, and `run_id` at the top.
"""

import copy
import difflib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mosaic_worker.errors import ConfigError

__all__ = ["InputPath", "WorkerConfig", "describe", "near", "parse_config", "read_document", "with_checkpoint"]

RUN_ID = "MOSAIC_RUN_ID"
_SHOWN = 60
_MASK = "•••"
_SECRET_NAME = re.compile(r"key|token|secret|passw|credential|authorization", re.IGNORECASE)
_SECRET_URL = re.compile(r"://.*[@?]")
"""An address with a user, a password or a query."""
_MAX_DEPTH = 64
"""Maximum nesting depth, as for events; pydantic cannot serialise some hundred levels."""

InputPath = Annotated[str, Field(json_schema_extra={"format": "absolute-path"})]
"""A file or folder that a run reads. The platform refuses a relative path: it would be resolved in the run's folder."""

Config = TypeVar("Config", bound="WorkerConfig")


class WorkerConfig(BaseModel):
    """Base of every worker's config: unknown fields are refused and a loaded config cannot be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    run_id: str = Field(min_length=1, description="The run's id; the platform sets it")
    worker_id: str | None = Field(default=None, description="The id of this worker process; the platform may set it")
    seed: int | None = Field(default=None, ge=0, description="Seed of all random numbers of the run")


def read_document(path: str | os.PathLike[str]) -> Any:
    """Read a config file as JSON; raise ConfigError if it is not."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {os.fspath(path)!r} cannot be read: {error}") from error
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # not only JSONDecodeError: very long numbers raise, too
        raise ConfigError(f"config file {os.fspath(path)!r} is not JSON: {error}") from error


def parse_config(model: type[Config], document: Any, environ: Mapping[str, str]) -> Config:
    """Validate a config document, flat or nested; raise ConfigError with one line per problem."""
    try:
        return model.model_validate(_unwrap(document, environ))
    except ValidationError as error:
        raise ConfigError([describe(model, problem) for problem in error.errors()]) from None


def with_checkpoint(document: Any, worker: str, template: Mapping[str, Any]) -> Any:
    """Fill in the fields with which a worker plays the checkpoint that stands beside `metadata` in a nested config.

    `template` is the worker's `policy_config`. With `"checkpoint": null` there is no model to load, and only the other
    fields of the template are filled in.
    """
    if not isinstance(document, dict) or "metadata" not in document or "checkpoint" not in document:
        return document
    checkpoint = document["checkpoint"]
    if checkpoint is not None and not (isinstance(checkpoint, str) and checkpoint):
        raise ConfigError(f"checkpoint: {_shown(checkpoint)} is not allowed; give a path")
    if checkpoint is not None and "{checkpoint}" not in template.values():
        raise ConfigError(f"checkpoint: {worker} plays no checkpoint; leave it out")
    document = copy.deepcopy(document)
    try:
        config = document["metadata"]["worker"]["config"]
        for path, value in template.items():
            *parents, name = path.split(".")
            part = config
            for parent in parents:
                part = part.setdefault(parent, {})
            if value != "{checkpoint}":
                part[name] = value
            elif checkpoint is not None:
                part[name] = checkpoint
    except (TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"metadata.worker.config: not an object to put a checkpoint into: {error}") from error
    return document


def near(given: str, known: Sequence[str], count: int = 3) -> str:
    """Return "; did you mean 'a' or 'b'?" for names that look like the given one, or nothing."""
    by_lower = {name.lower(): name for name in known}
    found = [by_lower[name] for name in difflib.get_close_matches(given.lower(), list(by_lower), n=count)]
    return f"; did you mean {' or '.join(map(repr, found))}?" if found else ""


def _unwrap(document: Any, environ: Mapping[str, str]) -> dict[str, Any]:
    """Find the worker's own fields in a document and give them a run id."""
    if not isinstance(document, dict):
        raise ConfigError(f"config: {_shown(document)} is not allowed; give a JSON object")
    if _is_deeper(document, _MAX_DEPTH):
        raise ConfigError(f"config: nested too deeply; {_MAX_DEPTH} levels are allowed")
    config, outer_id, metadata = document, None, document.get("metadata")
    if isinstance(metadata, dict) and "worker" in metadata:
        try:
            config = metadata["worker"]["config"]
        except (TypeError, KeyError) as error:
            raise ConfigError("metadata.worker.config: missing from a nested config; give a JSON object") from error
        outer_id = document.get("run_id")
    if not isinstance(config, dict):
        raise ConfigError(f"metadata.worker.config: {_shown(config)} is not allowed; give a JSON object")
    run_id = outer_id or config.get("run_id") or environ.get(RUN_ID)
    return config if run_id is None else {**config, "run_id": run_id}


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether a value is nested deeper than `levels`."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_is_deeper(part, levels - 1) for part in parts)


def describe(model: type[BaseModel], problem: Any) -> str:
    """Describe a validation problem in one line: field, given value, valid values."""
    location = problem["loc"]
    name = ".".join(map(str, location)) or "config"
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
    message = message[:1].lower() + message[1:] if message[1:2].islower() else message
    if problem["type"] == "missing":
        hint = f", or set {RUN_ID}" if location == ("run_id",) else ""
        return f"{name}: missing; give it in the config{hint}"
    given = _shown(_without_secrets(problem["input"], name))
    if problem["type"] == "extra_forbidden":
        known = _fields_at(model, location[:-1])
        fields = f" (fields: {', '.join(known)})" if known else ""
        return f"{name}: unknown field, given {given}{near(str(location[-1]), known)}{fields}"
    guess = ""
    if problem["type"] in {"literal_error", "enum"} and isinstance(problem["input"], str):
        expected = str(problem.get("ctx", {}).get("expected", ""))
        guess = near(problem["input"], [word for word in expected.split("'") if word not in {"", ", ", " or "}])
    return f"{name}: {given} is not allowed: {message}{guess}"


def _shown(value: Any) -> str:
    """Show a given value, shortened, in one line."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"


def _without_secrets(value: Any, name: str) -> Any:
    """Mask text that may be a secret, by its field's name or because it is an address: problems are logged."""
    if isinstance(value, str):
        return _MASK if _SECRET_NAME.search(name) or _SECRET_URL.search(value) else value
    if isinstance(value, dict):
        return {key: _without_secrets(inner, f"{name}.{key}") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_secrets(inner, name) for inner in value]
    return value


def _fields_at(model: Any, location: Sequence[int | str]) -> list[str]:
    """List the fields that a model, or one nested in it, allows."""
    for part in location:
        fields = getattr(model, "model_fields", {})
        if part not in fields:
            return []
        model = fields[part].annotation
    return list(getattr(model, "model_fields", {}))
