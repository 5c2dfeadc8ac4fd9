"""The files of a run: TensorBoard's, checkpoints and logs, in the manifest `analytics.json`."""

from pathlib import Path
from typing import Any

from mosaic_worker.context import RunContext
from mosaic_worker.manifest import Manifest
from ray_worker.keeper import LOGS

__all__ = ["CHECKPOINTS", "TENSORBOARD", "write_manifest"]

CHECKPOINTS = "checkpoints"
TENSORBOARD = "tensorboard"


def write_manifest(context: RunContext[Any]) -> None:
    """Write `analytics.json` and report it."""
    run_dir = context.run_dir
    manifest = Manifest(run_dir, context.config.run_id, context.metadata.name)
    if (run_dir / TENSORBOARD).is_dir():
        context.emitter.artifact("tensorboard", TENSORBOARD)
        manifest.add("tensorboard", TENSORBOARD)
    manifest.add("checkpoints", sorted((run_dir / CHECKPOINTS).glob("step-*"), key=_step))
    manifest.add("logs", [path for path in (run_dir / "log.txt", run_dir / LOGS) if path.exists()])
    manifest.add("videos", sorted((run_dir / "videos").glob("*.png")))
    manifest.write(context.emitter)


def _step(path: Path) -> int:
    return int(path.name.partition("-")[2])
