"""Checkpoints: a folder `step-N` with XuanCe's weights and, since those say nothing of themselves, all settings.

Nothing in it can run code: weights are read with `weights_only=True`, everything else is JSON.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from mosaic_worker.checkpoint_folders import CheckpointFolders
from mosaic_worker.errors import ConfigError

__all__ = ["FOLDERS", "About", "load_weights", "save"]

_FORMAT = "mosaic-xuance"
_VERSION = 1
_WEIGHTS = "model.pth"
_EXTRA = "value_norm.pth"


@dataclass(frozen=True)
class About:
    """What a checkpoint says of itself, all plain JSON."""

    agent: str
    env: str
    env_id: str
    seed: int
    step: int
    target: int
    """The step at which the training that saved it is complete."""
    episodes: int
    iterations: int
    settings: dict[str, Any]
    agents: list[str]
    observation_spaces: dict[str, Any]
    action_spaces: dict[str, Any]
    state_space: dict[str, Any] | None
    versions: dict[str, str]
    exploration: dict[str, float]
    """How much the agent explored: XuanCe's own fields, such as e_greedy."""
    obs_rms: dict[str, Any] | None = None
    """Mean, variance and count by which observations are normalised."""
    format: str = _FORMAT
    version: int = field(default=_VERSION)


FOLDERS = CheckpointFolders("xuance", About, "about.json")


def save(about: About, learner: Any, folder: Path) -> Path:
    """Write `step-N` with the learner's weights."""

    def write(draft: Path) -> None:
        learner.save_model(str(draft / _WEIGHTS))
        if norms := _norms(learner):
            torch.save({key: norm.state_dict() for key, norm in norms.items()}, draft / _EXTRA)

    return FOLDERS.save(about, about.step, write, folder)


def load_weights(path: Path, learner: Any, field_name: str) -> None:
    """Load the weights into an agent's learner; XuanCe itself would accept a file that lacks half of them."""
    file = path / _WEIGHTS
    try:
        saved = torch.load(file, map_location="cpu", weights_only=True)
        keys = set(saved["policy"])
    except Exception as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ConfigError(f"{field_name}: {str(file)!r} is no file of trained weights ({reason})") from error
    missing = set(learner.policy.state_dict()) ^ keys
    if missing:
        raise ConfigError(f"{field_name}: {str(file)!r} does not fit the algorithm: {min(missing)} is in one only")
    try:
        learner.load_model(str(file))
        if norms := _norms(learner):
            states = torch.load(path / _EXTRA, map_location="cpu", weights_only=True)
            for key, norm in norms.items():
                norm.load_state_dict(states[key])
    except (RuntimeError, ValueError, KeyError, OSError) as error:
        raise ConfigError(f"{field_name}: {str(file)!r} does not fit the algorithm: {error}") from error


def _norms(learner: Any) -> dict[str, torch.nn.Module]:
    """The running statistics of returns, which XuanCe's own file does not have."""
    found = getattr(learner, "value_normalizer", None)
    return found if isinstance(found, dict) else {}
