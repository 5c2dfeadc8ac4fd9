"""The files of a run: models and videos as artifacts, and the manifest `analytics.json`."""

from collections.abc import Iterable
from pathlib import Path

from cleanrl_worker.config import CleanRLWorkerConfig
from mosaic_worker.context import RunContext
from mosaic_worker.manifest import Manifest

__all__ = ["report_files", "write_manifest"]

_MODEL = "*.cleanrl_model"
_VIDEOS = ("*.mp4", "*.gif", "*.png")

Context = RunContext[CleanRLWorkerConfig]


def report_files(context: Context) -> None:
    """Report the models and videos that upstream scripts have written, which they do at the end."""
    run_dir, step = context.run_dir, context.emitter.last_step
    for kind, paths in (
        ("model", _found(run_dir / context.config.extras.tensorboard_dir, _MODEL)),
        ("video", _found(run_dir / "videos", "*.mp4")),
    ):
        for path in paths:
            context.emitter.artifact(kind, path.relative_to(run_dir), step=step)


def write_manifest(context: Context) -> None:
    """Write `analytics.json` and report it."""
    config, run_dir = context.config, context.run_dir
    manifest = Manifest(run_dir, config.run_id, context.metadata.name)
    tensorboard = run_dir / config.extras.tensorboard_dir
    manifest.add("tensorboard", {path.parent: None for path in _found(tensorboard, "events.out.tfevents.*")})
    manifest.add("checkpoints", [*_found(run_dir / "checkpoints", _MODEL), *_found(tensorboard, _MODEL)])
    manifest.add("logs", [path for path in (run_dir / "log.txt",) if path.is_file()])
    manifest.add("videos", [path for pattern in _VIDEOS for path in _found(run_dir / "videos", pattern)])
    if config.extras.track_wandb:
        folders = [path.parent for path in _found(run_dir / "wandb", "run-*.wandb")]
        manifest.set_wandb(
            project=config.extras.wandb_project_name,
            entity=config.extras.wandb_entity,
            mode=config.extras.wandb_mode,
            dir=run_dir / "wandb",
            runs=[folder.name.rsplit("-", 1)[-1] for folder in folders],
        )
    manifest.write(context.emitter)


def _found(folder: Path, pattern: str) -> Iterable[Path]:
    return sorted(folder.rglob(pattern))
