"""Checkpoints: a folder `step-N` with RLlib's own files and `mosaic.json`, which says what they are.

`mosaic.json` is plain JSON and is read first: RLlib's files are pickled, and only those of a checkpoint that names this
worker are opened. A policy needs `module_path(checkpoint, about.agents[agent])` and the spaces.
"""

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from mosaic_worker.encoding import to_plain
from mosaic_worker.errors import ConfigError

__all__ = ["About", "find_checkpoint", "keep_newest", "module_path", "read_about", "save"]

_FORMAT = "mosaic-rllib"
_VERSION = 1
_ABOUT = "mosaic.json"
_RL_MODULES = Path("learner_group") / "learner" / "rl_module"
_STEP = re.compile(r"step-(\d+)")


@dataclass(frozen=True)
class About:
    """What a checkpoint says of itself, all plain JSON."""

    algorithm: str
    """As in the config: PPO, DQN, …; A2C is a reduced PPO."""
    config: dict[str, Any]
    """The whole RayWorkerConfig of the training, nested, without run_id."""
    env_id: str
    family: str
    api_type: str
    """AEC, PARALLEL, or GYMNASIUM for a single-agent environment."""
    policy_configuration: str
    agents: dict[str, str]
    """Every agent that can take part, and the id of the RLModule that acts for it. A single-agent environment has one,
    named `default_agent`."""
    observation_spaces: dict[str, Any]
    """By agent, as the RLModule sees them (after the wrappers), as `mosaic_worker.spaces` writes them. With masks
    or a state for a central critic it is a Dict with `observations`, `action_mask`, `state`."""
    raw_spaces: dict[str, Any]
    """By agent, observations as the environment has them (before the wrappers): `Spaces.raw`. An environment in
    another process sends these."""
    action_spaces: dict[str, Any]
    modules: list[str]
    """Ids of all RLModules, those that act for no agent now (frozen copies, a critic) too."""
    seed: int
    step: int
    """Environment steps since the training began."""
    target: int
    """The step at which the training that saved it is complete."""
    episodes: int
    iterations: int
    versions: dict[str, str]
    league: dict[str, Any] | None = None
    """State of SELF_PLAY: snapshots taken, and the step of each frozen copy."""
    format: str = _FORMAT
    version: int = field(default=_VERSION)


def save(about: About, write: Callable[[Path], None], folder: Path) -> Path:
    """Write `step-N`; `write` puts RLlib's files into a folder. There is never half a checkpoint under that name."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{about.step}"
    draft = folder / f".step-{about.step}.{os.getpid()}"
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    write(draft)
    (draft / _ABOUT).write_text(json.dumps(to_plain(asdict(about)), indent=1), encoding="utf-8")
    for file in draft.rglob("*"):
        _sync(file)
    shutil.rmtree(path, ignore_errors=True)  # of an earlier attempt in the same folder
    draft.rename(path)
    _sync(folder)
    return path


def keep_newest(folder: Path, count: int) -> None:
    """Remove all but the newest checkpoints."""
    for path in _steps(folder)[:-count]:
        shutil.rmtree(path, ignore_errors=True)


def find_checkpoint(given: str | os.PathLike[str], field_name: str) -> Path:
    """Find a checkpoint: the folder itself, or the newest one in a run's folder. ConfigError blames the field."""
    path = Path(given)
    if not path.is_dir():
        raise ConfigError(f"{field_name}: {str(path)!r} is not a checkpoint: no such folder")
    if (path / _ABOUT).is_file():
        return path
    found = _steps(path / "checkpoints") or _steps(path)
    if not found:
        raise ConfigError(f"{field_name}: {str(path)!r} has no checkpoint of the ray worker (no {_ABOUT})")
    return found[-1]


def read_about(path: Path, field_name: str) -> About:
    """Read what a checkpoint says of itself."""
    try:
        content = json.loads((path / _ABOUT).read_text(encoding="utf-8"))
        if content.get("format") != _FORMAT or content.get("version") != _VERSION:
            kind = f"{content.get('format')!r} version {content.get('version')!r}"
            raise ConfigError(f"{field_name}: {str(path)!r} has format {kind}; this worker reads {_FORMAT} {_VERSION}")
        about = About(**content)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{field_name}: {str(path)!r} is damaged: {type(error).__name__}: {error}") from error
    if missing := [name for name in about.modules if not module_path(path, name).is_dir()]:
        raise ConfigError(f"{field_name}: {str(path)!r} is damaged: it has no RLModule {missing[0]!r}")
    return about


def module_path(checkpoint: Path, module_id: str) -> Path:
    """The folder of one RLModule, for `RLModule.from_checkpoint`."""
    return checkpoint / _RL_MODULES / module_id


def _steps(folder: Path) -> list[Path]:
    """The checkpoints in a folder, the newest last."""
    found = {int(match[1]): path for path in folder.glob("step-*") if (match := _STEP.fullmatch(path.name))}
    return [found[step] for step in sorted(found) if (found[step] / _ABOUT).is_file()]


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
