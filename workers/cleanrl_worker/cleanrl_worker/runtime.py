"""A run of the CleanRL worker: refuses what cannot run, says that it begins, does what its mode is, and ends it.

Our own `ppo`, curricula, resumed trainings and evaluations run in this process. Scripts of CleanRL, unmodified, and
shell scripts run in processes of their own, into which hooks are put (`sitecustomize.py`).
"""

import dataclasses
import importlib.util
import platform
import secrets
import shutil
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from cleanrl_worker.analytics import write_manifest
from cleanrl_worker.availability import find_script, upstream_version
from cleanrl_worker.checks import check_environment, check_files, library
from cleanrl_worker.command import arguments_of
from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY, OURS
from cleanrl_worker.script import read_script, run_script
from cleanrl_worker.upstream import judge, run_upstream
from mosaic_worker.context import RunContext
from mosaic_worker.errors import ConfigError

__all__ = ["CleanRLWorkerRuntime", "preflight"]

_SEEDS = 2**31
_PACKAGES = ("torch", "gymnasium", "gym", "numpy")

Context = RunContext[CleanRLWorkerConfig]
Mode = Callable[[Context], Mapping[str, Any]]


class CleanRLWorkerRuntime:
    """One run."""

    def __init__(self, context: Context) -> None:
        """Take the run's context; a run without a seed gets one."""
        if context.config.seed is None:
            config = context.config.model_copy(update={"seed": secrets.randbelow(_SEEDS)})
            context = dataclasses.replace(context, config=config)
        self._context = context

    def run(self) -> None:
        """Do what the config says."""
        context, config = self._context, self._context.config
        plan = preflight(config)
        mode = _MODES[config.mode] if not _is_upstream(config) else _train_upstream
        context.emitter.run_started(
            config.run_id,
            context.metadata.name,
            config=config.model_dump(mode="json"),
            env_id=config.env_id or None,
            seed=config.seed,
            task=plan["task"],
            total_steps=plan.get("total_steps"),
            total_episodes=plan.get("total_episodes"),
            versions=_versions(),
        )
        try:
            summary = mode(context)
        finally:
            write_manifest(context)
        context.stop.check()
        context.emitter.run_completed(step=context.emitter.last_step, episodes=summary.get("episodes"), summary=summary)


def preflight(config: CleanRLWorkerConfig) -> dict[str, Any]:
    """Say what a config would run, or raise ConfigError for what can be known to fail. `--dry-run` does this, too."""
    extras, algorithm = config.extras, DEFAULT_ALGO_REGISTRY[config.algo]
    plan: dict[str, Any] = {"mode": config.mode, "total_steps": config.total_timesteps or None}
    check_files(config)
    _check_tools(config)
    if config.mode == "script":
        script = read_script(config)
        task = f"{script.path.name}: {script.description}" if script.description else script.path.name
        return {
            **plan,
            "script": str(script.path),
            "task": task,
            "phases": list(script.phases),
            "total_steps": script.total_timesteps,
        }
    if config.mode != "train" and library() != "gymnasium":
        raise ConfigError(f"extras.mode: {config.mode} needs the profile default; this one has cleanrl 0.4.8 alone")
    if config.mode in {"curriculum", "resume_training"} and config.algo != "ppo":
        raise ConfigError(f"algo: {config.algo!r} is not allowed: {config.mode} is there for ppo alone")
    if config.mode == "policy_eval":
        episodes = extras.eval_episodes * extras.eval_repeat
        return {**plan, "total_steps": None, "total_episodes": episodes, "task": f"evaluation of {extras.policy_path}"}
    if config.mode == "resume_training":
        return {**plan, "module": OURS, **_goes_on(config)}
    plan["module"] = OURS
    if _is_upstream(config):
        found = find_script(config.algo)
        plan |= {"module": found.module, "upstream": found.upstream, "arguments": arguments_of(found, config)}
    schedule = extras.curriculum_schedule
    stages = [] if schedule is None or isinstance(schedule, str) else [stage.env_id for stage in schedule]
    for env_id in stages if config.mode == "curriculum" else [config.env_id]:
        check_environment(env_id, algorithm)
    where = f"{len(stages)} stages" if stages else schedule if isinstance(schedule, str) else config.env_id
    return {**plan, "task": f"{config.algo} on {where}"}


def _goes_on(config: CleanRLWorkerConfig) -> dict[str, Any]:
    """What a resumed training is: steps are counted from where the checkpoint's training was."""
    from cleanrl_worker import checkpoints  # noqa: PLC0415 - it imports torch, which most dry runs need not

    about = checkpoints.load(Path(config.extras.checkpoint_path or ""), "extras.checkpoint_path").about
    return {
        "total_steps": about.step + config.total_timesteps,
        "task": f"ppo on {about.env_id}, from step {about.step:,}",
    }


def _is_upstream(config: CleanRLWorkerConfig) -> bool:
    """Whether a script of CleanRL does the training, and not our own code."""
    is_ours = "ours" in DEFAULT_ALGO_REGISTRY[config.algo].upstreams and library() == "gymnasium"
    return config.mode == "train" and not is_ours


def _check_tools(config: CleanRLWorkerConfig) -> None:
    extras = config.extras
    if extras.track_wandb and importlib.util.find_spec("wandb") is None:
        raise ConfigError(
            "extras.track_wandb: wandb is not installed in this profile; leave it out, or add it to the lock"
        )
    if extras.capture_video and _is_upstream(config) and library() == "gym" and shutil.which("ffmpeg") is None:
        raise ConfigError(
            "extras.capture_video: cleanrl 0.4.8 records with ffmpeg, which is not on the PATH; "
            "extras.record keeps episodes as videos without it"
        )


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "cleanrl": upstream_version() or "none"}
    for package in _PACKAGES:
        if importlib.util.find_spec(package) is not None:
            found[package] = metadata.version(package)
    return found


def _train_upstream(context: Context) -> Mapping[str, Any]:
    config = context.config
    script = find_script(config.algo)
    name = str(script.path) if script.upstream == "checkout" else script.module
    # -P: the run's folder, which is the working folder, is no place to import from.
    command = [sys.executable, "-P", "-m", "cleanrl_worker.launcher", name, *arguments_of(script, config)]
    ending = run_upstream(context, command)
    judge(context, config.algo, ending)
    return ending.summary()


def _train(context: Context) -> Mapping[str, Any]:
    from cleanrl_worker.algorithms.ppo_with_save import run_training  # noqa: PLC0415 - each mode imports its own

    return run_training(context)


def _train_curriculum(context: Context) -> Mapping[str, Any]:
    from cleanrl_worker.wrappers.curriculum import run_curriculum_training  # noqa: PLC0415 - as above

    return run_curriculum_training(context)


def _evaluate(context: Context) -> Mapping[str, Any]:
    from cleanrl_worker.evaluation import run_batched_evaluation  # noqa: PLC0415 - as above

    return run_batched_evaluation(context)


def _refuse_interactive(_: Context) -> Mapping[str, Any]:
    raise ConfigError("extras.mode: interactive is started with --interactive")


_MODES: dict[str, Mode] = {
    "train": _train,
    "resume_training": _train,
    "curriculum": _train_curriculum,
    "policy_eval": _evaluate,
    "script": run_script,
    "interactive": _refuse_interactive,
}
