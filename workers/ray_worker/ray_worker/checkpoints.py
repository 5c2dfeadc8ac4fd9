"""Checkpoints: a folder `step-N` with RLlib's own files and `mosaic.json`, which says what they are.

`mosaic.json` is plain JSON and is read first: RLlib's files are pickled, and only those of a checkpoint that names this
worker are opened. A policy needs `module_path(checkpoint, about.agents[agent])` and the spaces.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mosaic_worker.checkpoint_folders import CheckpointFolders
from mosaic_worker.errors import ConfigError

__all__ = ["FOLDERS", "About", "module_path", "read_about"]

_FORMAT = "mosaic-rllib"
_VERSION = 1
_RL_MODULES = Path("learner_group") / "learner" / "rl_module"


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


FOLDERS = CheckpointFolders("ray", About, "mosaic.json")


def read_about(path: Path, field_name: str) -> About:
    """Read what a checkpoint says of itself; refuse one that lacks an RLModule."""
    about = FOLDERS.read(path, field_name)
    if missing := [name for name in about.modules if not module_path(path, name).is_dir()]:
        raise ConfigError(f"{field_name}: {str(path)!r} is damaged: it has no RLModule {missing[0]!r}")
    return about


def module_path(checkpoint: Path, module_id: str) -> Path:
    """The folder of one RLModule, for `RLModule.from_checkpoint`."""
    return checkpoint / _RL_MODULES / module_id
