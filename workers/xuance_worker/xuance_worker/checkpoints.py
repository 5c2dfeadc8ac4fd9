"""Checkpoints: a folder `step-N` with XuanCe's weights and, since those say nothing of themselves, all settings.

Nothing in it can run code: weights are read with `weights_only=True`, everything else is JSON.
"""

import json
import os
import re
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from mosaic_worker.encoding import to_plain
from mosaic_worker.errors import ConfigError

__all__ = ["About", "find_checkpoint", "keep_newest", "load_weights", "read_about", "save"]

_FORMAT = "mosaic-xuance"
_VERSION = 1
_ABOUT = "about.json"
_WEIGHTS = "model.pth"
_EXTRA = "value_norm.pth"
_STEP = re.compile(r"step-(\d+)")


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


def save(about: About, learner: Any, folder: Path) -> Path:
    """Write `step-N`. Under that name there is never half a checkpoint, whenever the process dies."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{about.step}"
    draft = folder / f".step-{about.step}.{os.getpid()}"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    learner.save_model(str(draft / _WEIGHTS))
    if norms := _norms(learner):
        torch.save({key: norm.state_dict() for key, norm in norms.items()}, draft / _EXTRA)
    (draft / _ABOUT).write_text(json.dumps(to_plain(asdict(about)), indent=1), encoding="utf-8")
    for file in draft.iterdir():
        _sync(file, os.O_RDONLY)
    shutil.rmtree(path, ignore_errors=True)  # of an earlier attempt in the same folder
    draft.rename(path)
    _sync(folder, os.O_RDONLY | os.O_DIRECTORY)
    return path


def keep_newest(folder: Path, count: int) -> None:
    """Remove all but the newest checkpoints."""
    for path in _steps(folder)[:-count]:
        shutil.rmtree(path, ignore_errors=True)


def find_checkpoint(given: str, field_name: str) -> Path:
    """Find a checkpoint: the folder itself, or the newest one in a run's folder. ConfigError blames the field."""
    path = Path(given)
    if not path.is_dir():
        why = "it is a file, not a folder such as checkpoints/step-1000" if path.exists() else "no such folder"
        raise ConfigError(f"{field_name}: {given!r} is not a checkpoint of the xuance worker: {why}")
    if (path / _ABOUT).is_file():
        return path
    found = _steps(path / "checkpoints") or _steps(path)
    if not found:
        raise ConfigError(f"{field_name}: {given!r} has no checkpoint of the xuance worker")
    return found[-1]


def read_about(path: Path, field_name: str) -> About:
    """Read what a checkpoint says of itself."""
    try:
        content = json.loads((path / _ABOUT).read_text(encoding="utf-8"))
        if content.get("format") != _FORMAT or content.get("version") != _VERSION:
            kind = f"{content.get('format')!r} version {content.get('version')!r}"
            raise ConfigError(f"{field_name}: {str(path)!r} has format {kind}; this worker reads {_FORMAT} {_VERSION}")
        return About(**content)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{field_name}: {str(path)!r} is damaged: {type(error).__name__}: {error}") from error


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


def _steps(folder: Path) -> list[Path]:
    found = [(int(match[1]), path) for path in folder.glob("step-*") if (match := _STEP.fullmatch(path.name))]
    return [path for _, path in sorted(found) if (path / _ABOUT).is_file()]


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
