"""A run of the XuanCe worker: checks what will run, reports that it begins, and does what its mode says."""

import hashlib
import platform
from collections.abc import Mapping
from importlib import metadata
from typing import Any

from mosaic_worker.context import Resume, RunContext
from mosaic_worker.errors import ConfigError
from mosaic_worker.manifest import Manifest
from xuance_worker.config import XuanCeWorkerConfig
from xuance_worker.task import Task, task_of

__all__ = ["preflight", "run"]

_PACKAGES = ("xuance", "torch", "gymnasium", "pettingzoo", "numpy")
_SEEDS = 2**31 - 1

Context = RunContext[XuanCeWorkerConfig]


def preflight(config: XuanCeWorkerConfig, resume: Resume | None = None) -> dict[str, Any]:
    """Return a plan of what would run; ConfigError for what can be known to fail. `--dry-run` does the same."""
    _check_device(config)
    if config.mode == "interactive":
        raise ConfigError("mode: interactive is started with --interactive, or as an interactive run")
    if config.mode == "policy_eval":
        about = _about(config.policy_path or "", "policy_path")
        task = f"evaluation of {about.agent} on {about.env_id}, {about.step:,} steps"
        return {"mode": config.mode, "task": task, "env_id": about.env_id, "total_episodes": config.eval_episodes}
    path, field = _continued(config, resume)
    if path is None:
        task = task_of(config)
        return {
            "mode": config.mode,
            "task": f"{task.agent.name} on {task.env_id}",
            "env_id": task.env_id,
            "total_steps": config.running_steps,
            "settings_from": task.source,
            "settings": task.settings,
            "notes": list(task.notes),
        }
    about = _about(path, field)
    _check_same(config, about, field, resume)
    total = about.step + config.running_steps if resume is None else about.target
    return {
        "mode": config.mode,
        "task": f"{about.agent} on {about.env_id}, from step {about.step:,}",
        "env_id": about.env_id,
        "total_steps": total,
        "seed": about.seed,
        "settings_from": "the checkpoint",
        "settings": about.settings,
    }


def run(context: Context) -> None:
    """Do what the config says; a run without a seed gets one from its id."""
    config, plan, emitter = context.config, context.plan, context.emitter
    seed = plan.get("seed", config.seed)
    seed = _drawn_seed(config.run_id) if seed is None else seed
    versions = _versions()
    document = {**config.model_dump(mode="json"), "seed": seed}
    if "settings" in plan:
        document["settings"] = plan["settings"]
    emitter.run_started(
        config.run_id,
        context.metadata.name,
        config=document,
        env_id=plan["env_id"],
        seed=seed,
        task=plan["task"],
        total_steps=plan.get("total_steps"),
        total_episodes=plan.get("total_episodes"),
        versions=versions,
    )
    for note in plan.get("notes", ()):
        emitter.log("info", note)
    try:
        summary = _evaluate(context, seed) if config.mode == "policy_eval" else _train(context, seed, versions)
    finally:
        _write_manifest(context)
    context.stop.check()
    emitter.run_completed(step=emitter.last_step, episodes=summary["episodes"], summary=summary)


def _evaluate(context: Context, seed: int) -> dict[str, Any]:
    from xuance_worker.evaluation import evaluate  # noqa: PLC0415 - it imports XuanCe, which takes seconds

    return evaluate(context, seed)


def _train(context: Context, seed: int, versions: Mapping[str, str]) -> dict[str, Any]:
    from xuance_worker.policies import task_of_checkpoint  # noqa: PLC0415 - as above
    from xuance_worker.training import Start, train  # noqa: PLC0415 - as above

    target = context.plan["total_steps"]
    path, field = _continued(context.config, context.resume)
    if path is None:
        return train(context, task_of(context.config), seed, Start(target), versions)
    from xuance_worker.checkpoints import FOLDERS  # noqa: PLC0415 - it imports torch

    found = FOLDERS.find(path, field)
    about = FOLDERS.read(found, field)
    task: Task = task_of_checkpoint(about, field)
    return train(context, task, seed, Start(target, found, about, field), versions)


def _continued(config: XuanCeWorkerConfig, resume: Resume | None) -> tuple[str | None, str]:
    """The checkpoint to continue from and the field that names it; a later attempt has one of its own."""
    if resume is not None:
        return str(resume.path), "resume.path"
    return (config.checkpoint_path, "checkpoint_path") if config.mode == "resume_training" else (None, "")


def _about(path: str, field: str) -> Any:
    """Load a checkpoint whole, so that one which does not fit is refused before the run begins."""
    from xuance_worker.checkpoints import FOLDERS  # noqa: PLC0415 - it imports torch
    from xuance_worker.policies import load_policy  # noqa: PLC0415 - it imports XuanCe, which takes seconds

    return load_policy(FOLDERS.find(path, field), field)[1]


def _check_same(config: XuanCeWorkerConfig, about: Any, field: str, resume: Resume | None) -> None:
    """Refuse a config that contradicts the checkpoint: a resumed training keeps the checkpoint's settings."""
    if resume is not None:
        return
    given = config.model_fields_set
    problems = []
    if given & {"algorithm", "method"} and config.agent.name != about.agent:
        problems.append(f"algorithm: the checkpoint of {field} was trained by {about.agent}; leave it out")
    if config.env_id and config.env_id != about.env_id:
        problems.append(f"env_id: the checkpoint of {field} was trained on {about.env_id}; leave it out")
    changed = {**config.overrides}
    if config.parallels is not None:
        changed["parallels"] = config.parallels
    problems += [
        f"{name}: the checkpoint of {field} has {about.settings[name]!r}, and a resumed training keeps it; leave it out"
        for name, value in changed.items()
        if name in about.settings and about.settings[name] != value
    ]
    if problems:
        raise ConfigError(problems)


def _check_device(config: XuanCeWorkerConfig) -> None:
    if config.device == "cpu":
        return
    import torch  # noqa: PLC0415 - only now needed

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if int(config.device.partition(":")[2] or 0) >= count:
        raise ConfigError(f"device: {config.device!r} is not there: torch sees {count} GPUs")


def _drawn_seed(run_id: str) -> int:
    """Draw a seed that is the same in all attempts of a run."""
    return int.from_bytes(hashlib.sha256(run_id.encode()).digest()[:8], "big") % _SEEDS


def _versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{package: metadata.version(package) for package in _PACKAGES}}


def _write_manifest(context: Context) -> None:
    run_dir = context.run_dir
    manifest = Manifest(run_dir, context.config.run_id, context.metadata.name)
    logs = sorted((run_dir / "tensorboard").glob("seed_*"))
    for folder in logs:
        context.emitter.artifact("tensorboard", folder.relative_to(run_dir))
    manifest.add("tensorboard", logs)
    manifest.add("checkpoints", sorted((run_dir / "checkpoints").glob("step-*")))
    manifest.add("logs", [path for path in (run_dir / "log.txt",) if path.is_file()])
    manifest.add("videos", sorted((run_dir / "videos").glob("*.png")))
    manifest.write(context.emitter)
