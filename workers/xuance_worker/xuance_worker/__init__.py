"""XuanCe's algorithms behind MOSAIC's worker protocol: imported in-process, upstream unmodified."""

from mosaic_worker.metadata import WorkerCapabilities, WorkerMetadata

__all__ = ["get_worker_metadata"]

__version__ = "0.1.0"

_RESUME = {"mode": "resume_training", "checkpoint_path": "{checkpoint}", "running_steps": "{steps}"}
_PLAY = {"mode": "interactive", "policy_path": "{checkpoint}"}
_EVALUATE = {
    "mode": "policy_eval",
    "policy_path": "{checkpoint}",
    "eval_episodes": "{episodes}",
    "seed": "{seed}",
}
_INTERACTIVE = ("reset", "step", "init_agent", "begin_episode", "select_action", "select_actions")


def get_worker_metadata() -> WorkerMetadata:
    """Describe this worker. The entry point in pyproject.toml leads here, so it must not import the library."""
    from xuance_worker.config import XuanCeWorkerConfig  # noqa: PLC0415 - keeps the import light
    from xuance_worker.environments import environment_ids  # noqa: PLC0415 - as above
    from xuance_worker.settings import algorithm_cards, upstream_version  # noqa: PLC0415 - as above

    return WorkerMetadata(
        name="xuance",
        version=__version__,
        description="XuanCe's multi-agent and single-agent algorithms",
        upstream_library="xuance",
        upstream_version=upstream_version(),
        capabilities=WorkerCapabilities(
            worker_type="xuance",
            supported_paradigms=("parallel", "independent", "cooperative"),
            env_families=("mpe", "sisl", "butterfly", "gymnasium", "box2d", "mujoco", "atari", "minigrid"),
            action_spaces=("discrete", "continuous"),
            observation_spaces=("vector", "image"),
            max_agents=64,
            supports_checkpointing=True,
            supports_resume=True,
            resume_config=_RESUME,
            policy_config=_PLAY,
            evaluate_config=_EVALUATE,
            parameters_field="overrides",
            interactive_commands=_INTERACTIVE,
            requires_gpu=False,
            estimated_memory_mb=1024,
        ),
        config_model=XuanCeWorkerConfig,
        # Long enough for updates to happen: VDN learns nothing before start_training.
        example_config={
            "algorithm": "vdn",
            "env_id": "simple_spread_v3",
            "running_steps": 2000,
            "parallels": 4,
            "seed": 1,
            "overrides": {"start_training": 400, "training_frequency": 4, "buffer_size": 4000},
        },
        algorithms=algorithm_cards,
        environments=environment_ids,
    )
