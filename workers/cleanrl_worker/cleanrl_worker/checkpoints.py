"""Checkpoints of our own ppo: files with the suffix `.cleanrl_model`, written atomically.

They hold tensors and a JSON text, and no code; `weights_only=True` refuses anything else.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from cleanrl_worker.model_files import STEP, SUFFIX
from mosaic_worker.errors import ConfigError

__all__ = ["About", "Checkpoint", "is_ours", "load", "parse", "read", "save"]

_FORMAT = "mosaic-cleanrl-ppo"
_VERSION = 1


@dataclass(frozen=True)
class About:
    """The description in a checkpoint, all plain JSON."""

    agent: str
    env_id: str
    seed: int
    step: int
    target: int
    """The last step of the training that saved it."""
    episodes: int
    args: dict[str, Any]
    observation_space: dict[str, Any]
    action_space: dict[str, Any]
    random: dict[str, Any]
    """The states of Python's, numpy's and the environments' generators."""
    returns: dict[str, float]
    """Statistics of the discounted return, by which rewards are scaled."""
    curriculum: dict[str, Any] | None = None
    best_score: float | None = None
    """The best score of an evaluation during the training that saved it."""


@dataclass(frozen=True)
class Checkpoint:
    """Everything that is needed to resume, except unfinished episodes."""

    about: About
    weights: dict[str, Any]
    optimizer: dict[str, Any]
    torch_random: torch.Tensor


def save(checkpoint: Checkpoint, folder: Path) -> Path:
    """Write `step-N.cleanrl_model` atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{STEP}{checkpoint.about.step}{SUFFIX}"
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    content = {
        "format": _FORMAT,
        "version": _VERSION,
        "about": json.dumps(asdict(checkpoint.about)),
        "weights": checkpoint.weights,
        "optimizer": checkpoint.optimizer,
        "torch_random": checkpoint.torch_random,
    }
    with draft.open("wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)  # so that the new name survives a power cut, too
    finally:
        os.close(descriptor)
    return path


def read(path: Path, field: str) -> Any:
    """Read a file that torch saved; ConfigError names `field`."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ConfigError(
            f"{field}: {str(path)!r} is no file of trained weights: only tensors and plain values are read, never code"
            f" ({reason})"
        ) from error


def is_ours(content: Any) -> bool:
    """Whether what was read is a checkpoint of our ppo."""
    return isinstance(content, dict) and content.get("format") == _FORMAT


def parse(content: Any, path: Path, field: str) -> Checkpoint:
    """Parse the content of a checkpoint; ConfigError says why it is none."""
    if not is_ours(content):
        raise ConfigError(
            f"{field}: {str(path)!r} was not saved by this worker's ppo: models of upstream scripts can be evaluated"
            " (mode policy_eval with their algo), not trained on"
        )
    if content.get("version") != _VERSION:
        version = content.get("version")
        raise ConfigError(f"{field}: {str(path)!r} has version {version!r} of the format; this worker reads {_VERSION}")
    try:
        return Checkpoint(
            about=About(**json.loads(content["about"])),
            weights=content["weights"],
            optimizer=content["optimizer"],
            torch_random=content["torch_random"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{field}: {str(path)!r} is damaged: {type(error).__name__}: {error}") from error


def load(path: Path, field: str) -> Checkpoint:
    """Read a checkpoint of ours."""
    return parse(read(path, field), path, field)
