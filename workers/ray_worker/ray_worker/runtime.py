"""A run of the RLlib worker: checks what will run, reports that it begins, and does what its mode says."""

import hashlib
import os
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from mosaic_worker.context import Resume, RunContext
from mosaic_worker.errors import ConfigError
from ray_worker.analytics import write_manifest
from ray_worker.checkpoints import FOLDERS, About, read_about
from ray_worker.cluster import beyond_reservation, check_cpus, cpus_here, set_variables
from ray_worker.config import RayWorkerConfig, ResourceConfig

__all__ = ["preflight", "run", "training_config"]

_PACKAGES = ("ray", "torch", "gymnasium", "pettingzoo", "mpe2", "numpy")
_SEEDS = 2**31 - 1
_KEPT = ("environment", "training", "policy_configuration", "self_play", "seed")
"""Parts of a config that a resumed training keeps."""

Context = RunContext[RayWorkerConfig]


def preflight(config: RayWorkerConfig, resume: Resume | None = None) -> dict[str, Any]:
    """Return a plan of what would run; ConfigError for what can be known to fail. `--dry-run` does the same."""
    if config.mode == "interactive":
        raise ConfigError("mode: interactive is started with --interactive, or as an interactive run")
    if config.mode == "policy_eval":
        set_variables("", os.environ)
        about = _about(config.policy_path or "", "policy_path")
        _check_opponents(config, about)
        task = f"evaluation of {about.algorithm} on {about.env_id}, {about.step:,} steps"
        return {"mode": config.mode, "task": task, "env_id": about.env_id, "total_episodes": config.eval_episodes}
    path, field = _continued(config, resume)
    about = None if path is None else _about(path, field)
    if about is not None and resume is None:
        _check_same(config, about, field)
    wanted = training_config(config, about)
    set_variables(wanted.resources.address, os.environ)
    if not wanted.resources.address:
        check_cpus(wanted.resources, cpus_here(), "this machine")
    _check_gpus(wanted.resources)
    from ray_worker.algo_params import A2C_NOTE  # noqa: PLC0415 - takes seconds
    from ray_worker.algorithms import algorithm_config, task_of  # noqa: PLC0415 - as above

    task = task_of(wanted)
    algorithm_config(task, wanted, 0, Path())  # RLlib has rules of its own.
    name = f"{task.algorithm} on {task.environment.env_id}"
    warning = beyond_reservation(wanted.resources, os.environ)
    return {
        "mode": config.mode,
        "task": name if about is None else f"{name}, from step {about.step:,}",
        "env_id": task.environment.env_id,
        "total_steps": _target(config, about, resume),
        "seed": wanted.seed,
        "api_type": task.environment.api,
        "policies": dict(task.policies.agents),
        "settings": task.params,
        "notes": [A2C_NOTE] if task.algorithm == "A2C" else [],
        "warnings": [] if warning is None else [warning],
    }


def run(context: Context) -> None:
    """Do what the config says; a run without a seed gets one from its id."""
    config, plan, emitter = context.config, context.plan, context.emitter
    seed = plan.get("seed", config.seed)
    seed = _drawn_seed(config.run_id) if seed is None else seed
    versions = _versions()
    emitter.run_started(
        config.run_id,
        context.metadata.name,
        config={**config.model_dump(mode="json"), "seed": seed, "settings": plan.get("settings")},
        env_id=plan["env_id"],
        seed=seed,
        task=plan["task"],
        total_steps=plan.get("total_steps"),
        total_episodes=plan.get("total_episodes"),
        versions=versions,
    )
    for note in plan.get("notes", ()):
        emitter.log("info", note)
    for warning in plan.get("warnings", ()):
        emitter.log("warning", warning)
    try:
        summary = _evaluate(context, seed) if config.mode == "policy_eval" else _train(context, seed, versions)
    finally:
        write_manifest(context)
    context.stop.check()
    emitter.run_completed(step=emitter.last_step, episodes=summary["episodes"], summary=summary)


def training_config(config: RayWorkerConfig, about: About | None) -> RayWorkerConfig:
    """The config to train with: a resumed training keeps the checkpoint's, but for given resources and frames."""
    if about is None:
        return config
    given = config.model_dump(exclude_unset=True)
    kept = {name: about.config[name] for name in _KEPT}
    parts = {name: {**about.config[name], **given.get(name, {})} for name in ("resources", "checkpoint")}
    return RayWorkerConfig.model_validate({**given, **kept, **parts, "mode": "train"})


def _evaluate(context: Context, seed: int) -> dict[str, Any]:
    from ray_worker.policy_evaluator import evaluate  # noqa: PLC0415 - it imports RLlib, which takes seconds

    return evaluate(context, seed)


def _train(context: Context, seed: int, versions: Mapping[str, str]) -> dict[str, Any]:
    import dataclasses  # noqa: PLC0415 - used here alone

    from ray_worker.algorithms import task_of  # noqa: PLC0415 - it imports RLlib, which takes seconds
    from ray_worker.training import Start, train  # noqa: PLC0415 - as above

    target = context.plan["total_steps"]
    path, field = _continued(context.config, context.resume)
    if path is None:
        return train(context, task_of(context.config), seed, Start(target), versions)
    found = FOLDERS.find(path, field)
    about = read_about(found, field)
    wanted = training_config(context.config, about)
    start = Start(target, found, about, field)
    return train(dataclasses.replace(context, config=wanted), task_of(wanted), seed, start, versions)


def _continued(config: RayWorkerConfig, resume: Resume | None) -> tuple[str | None, str]:
    """The checkpoint to continue from and the field that names it; a later attempt has one of its own."""
    if resume is not None:
        return str(resume.path), "resume.path"
    return (config.checkpoint_path, "checkpoint_path") if config.mode == "resume_training" else (None, "")


def _about(path: str, field: str) -> About:
    return read_about(FOLDERS.find(path, field), field)


def _check_opponents(config: RayWorkerConfig, about: About) -> None:
    """Refuse opponents that are no agents of the checkpoint's environment, or have no checkpoint for it."""
    for agent, path in config.opponents.items():
        field = f"opponents.{agent}"
        if agent not in about.agents:
            raise ConfigError(f"{field}: there is no such agent; there are {', '.join(about.agents)}")
        if path != "random" and (other := _about(path, field).env_id) != about.env_id:
            raise ConfigError(f"{field}: it was trained on {other}, the policy on {about.env_id}")


def _target(config: RayWorkerConfig, about: About | None, resume: Resume | None) -> int:
    if about is None:
        return config.training.total_timesteps
    return about.target if resume is not None else about.step + config.training.total_timesteps


def _check_same(config: RayWorkerConfig, about: About, field: str) -> None:
    """Refuse a config that contradicts the checkpoint: a resumed training keeps the checkpoint's settings."""
    problems = []
    for part in ("environment", "training", "self_play"):
        given = getattr(config, part)
        problems += [
            f"{part}.{name}: the checkpoint of {field} has {about.config[part][name]!r}, and a resumed training keeps "
            "it; leave it out"
            for name in given.model_fields_set - {"total_timesteps"}
            if given.model_dump(mode="json")[name] != about.config[part][name]
        ]
    if "policy_configuration" in config.model_fields_set and config.policy_configuration != about.policy_configuration:
        problems.append(
            f"policy_configuration: the checkpoint of {field} has {about.policy_configuration}; leave it out"
        )
    if problems:
        raise ConfigError(problems)


def _check_gpus(resources: ResourceConfig) -> None:
    """Refuse more GPUs than the driver sees. The learner is in the driver, also if the cluster is elsewhere."""
    import torch  # noqa: PLC0415 - takes a second

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if resources.num_gpus > gpus:
        raise ConfigError(
            f"resources.num_gpus: {resources.num_gpus:g} needed, and the machine of the learner, this one, has {gpus}"
        )


def _drawn_seed(run_id: str) -> int:
    """Draw a seed that is the same in all attempts of a run."""
    return int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:8], "big") % _SEEDS


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{package: metadata.version(package) for package in _PACKAGES}}
