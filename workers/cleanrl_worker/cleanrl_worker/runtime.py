"""A run of the CleanRL worker: checks the config and runs its mode.

Our own `ppo`, curricula, resumed trainings and evaluations run in this process. Unmodified scripts of CleanRL and
shell scripts run in processes of their own, with the kit's hooks (`mosaic_worker.hooks`).
"""

import dataclasses
import functools
import hashlib
import importlib.util
import platform
import shutil
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from cleanrl_worker.analytics import write_manifest
from cleanrl_worker.availability import find_script, upstream_version
from cleanrl_worker.checks import check_environment, library
from cleanrl_worker.command import arguments_of, values_of
from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.model_files import find_model
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY, OURS
from cleanrl_worker.upstream import run_upstream
from cleanrl_worker.wrappers.schedule import stages_of
from mosaic_worker.context import Resume, RunContext
from mosaic_worker.errors import ConfigError
from mosaic_worker.hooks.process import judge
from mosaic_worker.hooks.script import ShellScript, read_script, run_script

__all__ = ["CleanRLWorkerRuntime", "preflight"]

_SEEDS = 2**31 - 1
_PACKAGES = ("torch", "gymnasium", "gym", "numpy")

Context = RunContext[CleanRLWorkerConfig]
Mode = Callable[[Context], Mapping[str, Any]]


class CleanRLWorkerRuntime:
    """One run."""

    def __init__(self, context: Context) -> None:
        """Take the run's context."""
        self._context = context

    def run(self) -> None:
        """Run the config's mode; a run without a seed gets one."""
        context, config = self._context, self._context.config
        plan = context.plan
        if config.seed is None:
            config = config.model_copy(update={"seed": plan.get("seed", drawn_seed(config.run_id))})
            context = dataclasses.replace(context, config=config)
        mode = _MODES[config.mode] if not _is_upstream(config) else _train_upstream
        context.emitter.run_started(
            config.run_id,
            context.metadata.name,
            config=_effective(config, plan),
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


def _effective(config: CleanRLWorkerConfig, plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config with every hyperparameter that the algorithm uses, defaults included."""
    document = config.model_dump(mode="json")
    if "hyperparameters" in plan:
        document["extras"]["algo_params"] = plan["hyperparameters"]
    return document


def drawn_seed(run_id: str) -> int:
    """Derive a seed of at least 1 from the run id; scripts of cleanrl 0.4.8 treat 0 as no seed."""
    return 1 + int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:8], "big") % _SEEDS


def preflight(config: CleanRLWorkerConfig, resume: Resume | None = None) -> dict[str, Any]:
    """Return the plan of a run; raise ConfigError for what is known to fail.

    `resume` is the checkpoint of an earlier attempt, if there was one.
    """
    extras, algorithm = config.extras, DEFAULT_ALGO_REGISTRY[config.algo]
    plan: dict[str, Any] = {"mode": config.mode, "total_steps": config.total_timesteps or None}
    _check_tools(config)
    if config.mode == "script":
        script = _script(config)
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
        model = find_model(Path(extras.policy_path or ""), "extras.policy_path")
        return {**plan, "total_steps": None, "total_episodes": episodes, "task": f"evaluation of {model}"}
    if config.mode == "resume_training":
        hyperparameters = values_of(find_script("ppo"), config, _saved_args(*_resumed(config, resume)))
        return {**plan, "module": OURS, "hyperparameters": hyperparameters, **_goes_on(config, resume)}
    if _is_upstream(config):
        found = find_script(config.algo)
        check_environment(config.env_id, algorithm)
        plan |= {"module": found.module, "upstream": found.upstream, "arguments": arguments_of(found, config)}
        plan["hyperparameters"] = values_of(found, config)
        return {**plan, "task": f"{config.algo} on {config.env_id}"}
    saved = _saved_args(str(resume.path), "resume.path") if resume is not None else {}
    hyperparameters = values_of(find_script("ppo"), config, saved)
    return {**plan, "module": OURS, "hyperparameters": hyperparameters, "task": f"ppo on {_where(config)}"}


def _where(config: CleanRLWorkerConfig) -> str:
    """Return where our ppo would train; raise ConfigError if it cannot."""
    from cleanrl_worker.environments import check_for_ppo, check_stages  # noqa: PLC0415 - they import torch

    schedule = config.extras.curriculum_schedule
    if schedule is None:
        check_for_ppo(config.env_id)
        return config.env_id
    check_stages(stages_of(schedule))
    return schedule if isinstance(schedule, str) else f"{len(schedule)} stages"


def _goes_on(config: CleanRLWorkerConfig, resume: Resume | None) -> dict[str, Any]:
    """Return the plan of a resumed training, whose steps continue those of the checkpoint.

    A later attempt resumes from its own checkpoint: the first one may be gone.
    """
    from cleanrl_worker import checkpoints  # noqa: PLC0415 - it imports torch, which other dry runs need not

    path, field = _resumed(config, resume)
    model = find_model(Path(path), field)
    about = checkpoints.load(model, field).about
    return {
        "total_steps": about.step + config.total_timesteps if resume is None else about.target,
        "task": f"ppo on {about.env_id}, from step {about.step:,} of {model}",
        "seed": about.seed,
    }


def _resumed(config: CleanRLWorkerConfig, resume: Resume | None) -> tuple[str, str]:
    """Return the checkpoint of a resumed training, and the field that names it."""
    return config.extras.resumed if resume is None else (str(resume.path), "resume.path")


def _saved_args(path: str, field: str) -> Mapping[str, Any]:
    from cleanrl_worker import checkpoints  # noqa: PLC0415 - as above

    return checkpoints.load(find_model(Path(path), field), field).about.args


def _is_upstream(config: CleanRLWorkerConfig) -> bool:
    """Whether a script of CleanRL trains, not our own code."""
    is_ours = "ours" in DEFAULT_ALGO_REGISTRY[config.algo].upstreams and library() == "gymnasium"
    return config.mode == "train" and not is_ours


def _check_tools(config: CleanRLWorkerConfig) -> None:
    extras = config.extras
    if extras.eval_every and (_is_upstream(config) or config.mode in {"policy_eval", "script"}):
        raise ConfigError("extras.eval_every: only our ppo is evaluated during its training; leave it out")
    if config.seed == 0 and _is_upstream(config) and library() == "gym":
        raise ConfigError(
            "seed: 0 is not allowed: to cleanrl 0.4.8 it means none, and the clock is taken; give 1 or more"
        )
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
    # -P: do not import from the working folder, which is the run's.
    command = [sys.executable, "-P", "-m", "cleanrl_worker.launcher", name, *arguments_of(script, config)]
    ending = run_upstream(context, command)
    judge(context, config.algo, ending)
    return ending.summary()


def _script(config: CleanRLWorkerConfig) -> ShellScript:
    return read_script(config.extras.script or "", "extras.script", config.total_timesteps)


def _run_script(context: Context) -> Mapping[str, Any]:
    arguments = context.config.extras.script_args
    return run_script(context, _script(context.config), arguments, functools.partial(run_upstream, context))


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
    "script": _run_script,
    "interactive": _refuse_interactive,
}
