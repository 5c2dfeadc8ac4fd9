"""Runs CleanRL's programs with the kit's hooks: settings of the hooks, variables, TensorBoard folder."""

import os
from collections.abc import Callable
from pathlib import Path

from cleanrl_worker.analytics import report_files
from cleanrl_worker.checks import library
from cleanrl_worker.config import CleanRLWorkerConfig
from mosaic_worker.context import RunContext
from mosaic_worker.hooks.counters import Counters
from mosaic_worker.hooks.process import Ending, run_hooked
from mosaic_worker.hooks.settings import HookSettings

__all__ = ["HOOKS", "run_upstream"]

HOOKS = HookSettings(
    episode_tags=("charts/episodic_return", "charts/episode_reward"),
    foreign_step_tags=("eval/",),  # numbers of evaluation episodes
    evaluation_paths=(str(Path("cleanrl_utils", "evals")),),
    env_modules=("ale_py",),
)
_FOLDER = Path(__file__).resolve().parents[1]

Context = RunContext[CleanRLWorkerConfig]


def run_upstream(
    context: Context,
    command: list[str],
    *,
    on_line: Callable[[str], None] | None = None,
    look: Callable[[Counters], None] = lambda _: None,
) -> Ending:
    """Run a command of CleanRL to its end, and report the models and videos that it left."""
    _link_tensorboard(context)
    try:
        return run_hooked(context, command, HOOKS, environ=_environ(context), on_line=on_line, look=look)
    finally:
        report_files(context)


def _environ(context: Context) -> dict[str, str]:
    extras = context.config.extras
    upstream = os.environ.get("MOSAIC_UPSTREAM") if library() == "gymnasium" else None
    folders = [_FOLDER, upstream, os.environ.get("PYTHONPATH")]
    return {
        **extras.frame_variables(os.environ),
        "PYTHONPATH": os.pathsep.join(str(folder) for folder in folders if folder),
        # Nothing goes to Weights & Biases unless the run asks for it.
        "WANDB_MODE": extras.wandb_mode if extras.track_wandb else "disabled",
        "WANDB_DIR": str(context.run_dir),
    }


def _link_tensorboard(context: Context) -> None:
    """Redirect `runs`, where scripts write TensorBoard files and models, to the folder that the config names."""
    folder = context.run_dir / context.config.extras.tensorboard_dir
    folder.mkdir(parents=True, exist_ok=True)
    runs = context.run_dir / "runs"
    if not runs.exists():
        runs.symlink_to(folder.relative_to(context.run_dir))
