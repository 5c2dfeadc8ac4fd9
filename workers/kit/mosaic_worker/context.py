"""The argument of a worker's run function."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from mosaic_worker.config import WorkerConfig
from mosaic_worker.emitter import Emitter
from mosaic_worker.metadata import WorkerMetadata
from mosaic_worker.stop import Stop

__all__ = ["Resume", "RunContext"]

Config = TypeVar("Config", bound=WorkerConfig)


@dataclass(frozen=True)
class Resume:
    """The checkpoint of an earlier attempt to resume from."""

    path: Path
    step: int | None = None


@dataclass(frozen=True)
class RunContext(Generic[Config]):
    """One run: its config, its emitter, its folder, and whether it was asked to stop."""

    metadata: WorkerMetadata
    config: Config
    emitter: Emitter
    stop: Stop
    run_dir: Path
    resume: Resume | None = None
    plan: Mapping[str, Any] = field(default_factory=dict)
    """What the worker's `preflight` returned for this run."""
    uses: Sequence[Mapping[str, Any]] = ()
    """The environments of other workers that the run uses: worker, profile, interpreter, argv and environ of each."""
