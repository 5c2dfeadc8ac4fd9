"""RLlib's algorithms behind MOSAIC's worker protocol: trained on a Ray cluster, upstream unmodified."""

import importlib
from typing import Any

from mosaic_worker.metadata import WorkerCapabilities, WorkerMetadata

__all__ = [
    "EpisodeMetrics",
    "EvaluationConfig",
    "EvaluationResults",
    "PolicyEvaluator",
    "RayPolicyActor",
    "RayPolicyConfig",
    "RayPolicyController",
    "create_ray_actor",
    "get_worker_metadata",
    "run_evaluation",
]

__version__ = "0.1.0"

_RESUME = {"mode": "resume_training", "checkpoint_path": "{checkpoint}", "total_timesteps": "{steps}"}
_PLAY = {"mode": "interactive", "policy_path": "{checkpoint}"}
_EVALUATE = {
    "mode": "policy_eval",
    "policy_path": "{checkpoint}",
    "eval_episodes": "{episodes}",
    "seed": "{seed}",
}
_INTERACTIVE = ("reset", "step", "init_agent", "begin_episode", "select_action", "select_actions")
_LAZY = {
    "EpisodeMetrics": "evaluation_results",
    "EvaluationConfig": "policy_evaluator",
    "EvaluationResults": "evaluation_results",
    "PolicyEvaluator": "policy_evaluator",
    "RayPolicyActor": "policy_actor",
    "RayPolicyConfig": "policy_actor",
    "RayPolicyController": "policy_actor",
    "create_ray_actor": "policy_actor",
    "run_evaluation": "policy_evaluator",
}
"""Public names and the modules that have them. They import RLlib, which takes seconds: only on demand."""


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for."""
    if name in _LAZY:
        return getattr(importlib.import_module(f"ray_worker.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'ray_worker' has no attribute {name!r}")


def get_worker_metadata() -> WorkerMetadata:
    """Describe this worker. The entry point in pyproject.toml leads here, so it must not import the library."""
    from ray_worker.algo_params import algorithm_cards  # noqa: PLC0415 - keeps the import light
    from ray_worker.config import RayWorkerConfig  # noqa: PLC0415 - as above

    return WorkerMetadata(
        name="ray",
        version=__version__,
        description="RLlib's algorithms on a Ray cluster, single-agent and multi-agent",
        upstream_library="ray",
        upstream_version=_upstream_version(),
        capabilities=WorkerCapabilities(
            worker_type="ray",
            supported_paradigms=(
                "single_agent",
                "parameter_sharing",
                "independent",
                "self_play",
                "shared_value_function",
            ),
            env_families=("sisl", "classic", "butterfly", "mpe", "gymnasium"),
            action_spaces=("discrete", "continuous"),
            observation_spaces=("vector", "image"),
            max_agents=100,
            supports_self_play=True,
            supports_population=True,  # of frozen copies, in SELF_PLAY
            supports_checkpointing=True,
            supports_pause_resume=True,
            supports_resume=True,
            resume_config=_RESUME,
            policy_config=_PLAY,
            evaluate_config=_EVALUATE,
            parameters_field="algo_params",
            interactive_commands=_INTERACTIVE,
            requires_gpu=False,
            estimated_memory_mb=2048,
        ),
        config_model=RayWorkerConfig,
        # In the driver's own process, so that the same seed gives the same episodes.
        example_config={
            "algorithm": "PPO",
            "env_id": "CartPole-v1",
            "total_timesteps": 6000,
            "num_workers": 0,
            "seed": 1,
            "algo_params": {"train_batch_size_per_learner": 500, "minibatch_size": 125, "num_epochs": 2},
        },
        algorithms=algorithm_cards,
        environments=_environment_ids,
    )


def _environment_ids() -> list[str]:
    from ray_worker.environments import environment_ids  # noqa: PLC0415 - it imports Gymnasium

    return environment_ids()


def _upstream_version() -> str | None:
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - only asked for a description

    try:
        return version("ray")
    except PackageNotFoundError:
        return None
