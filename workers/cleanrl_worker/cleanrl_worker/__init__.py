"""CleanRL's single-file algorithms behind MOSAIC's worker protocol, upstream unmodified."""

from typing import Any

from mosaic_worker.metadata import WorkerCapabilities, WorkerMetadata

__all__ = ["get_worker_metadata"]

__version__ = "0.1.0"

# Short, and long enough for losses to arrive: dqn learns nothing before learning_starts.
_RESUME = {
    "extras.mode": "resume_training",
    "extras.checkpoint_path": "{checkpoint}",
    "total_timesteps": "{steps}",
}
_PLAY = {"extras.mode": "interactive", "extras.policy_path": "{checkpoint}"}
_EVALUATE = {
    "extras.mode": "policy_eval",
    "extras.policy_path": "{checkpoint}",
    "extras.eval_episodes": "{episodes}",
    "seed": "{seed}",
}
_SCRIPT = {
    "extras.mode": "script",
    "extras.script": "{script}",
    "extras.script_args": "{arguments}",
    "seed": "{seed}",
}
_INTERACTIVE = ("reset", "step", "init_agent", "begin_episode", "select_action", "select_actions")
_EXAMPLES: dict[str, dict[str, Any]] = {
    "default": {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 4096, "seed": 1},
    "legacy": {
        "algo": "dqn",
        "env_id": "CartPole-v1",
        "total_timesteps": 4000,
        "seed": 1,
        "extras": {"algo_params": {"learning_starts": 500}},
    },
}


def get_worker_metadata() -> WorkerMetadata:
    """Say what this worker is; the entry point in pyproject.toml leads here, so it must not import the library."""
    from cleanrl_worker.availability import algorithm_cards, profile, upstream_version  # noqa: PLC0415 - keeps the import light
    from cleanrl_worker.checks import environment_ids  # noqa: PLC0415 - as above
    from cleanrl_worker.config import CleanRLWorkerConfig  # noqa: PLC0415 - as above

    is_default = profile() == "default"
    return WorkerMetadata(
        name="cleanrl",
        version=__version__,
        description="CleanRL's single-file algorithms, and a PPO of the same kind that saves and resumes",
        upstream_library="cleanrl",
        upstream_version=upstream_version(),
        capabilities=WorkerCapabilities(
            worker_type="cleanrl",
            supported_paradigms=("sequential",),
            env_families=("gymnasium", "atari", "procgen", "mujoco", "dm_control", "minigrid", "babyai"),
            action_spaces=("discrete", "continuous"),
            observation_spaces=("vector", "image"),
            max_agents=1,
            # What saves, resumes and answers is ours, and lives in default.
            supports_checkpointing=is_default,
            supports_resume=is_default,
            resume_config=_RESUME if is_default else {},
            policy_config=_PLAY if is_default else {},
            evaluate_config=_EVALUATE if is_default else {},
            script_config=_SCRIPT,
            parameters_field="extras.algo_params",
            interactive_commands=_INTERACTIVE if is_default else (),
            requires_gpu=False,
            estimated_memory_mb=512,
        ),
        config_model=CleanRLWorkerConfig,
        example_config=_EXAMPLES[profile()],
        algorithms=algorithm_cards,
        environments=environment_ids,
    )
