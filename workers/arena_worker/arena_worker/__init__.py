"""The arena: plays episodes in which operators decide, each policy in a process and virtualenv of its own."""

from mosaic_worker.metadata import WorkerCapabilities, WorkerMetadata

__all__ = ["get_worker_metadata"]

__version__ = "0.1.0"

# A policy of its own kind: the arena needs no other process to move at random.
_EXAMPLE = {
    "environment": {"id": "CartPole-v1"},
    "operators": {"random": {"worker": "random"}},
    "lineups": [{"name": "random", "agents": {"*": "random"}}],
    "play": [{"lineup": "random", "episodes": [0, 200]}],
}


def get_worker_metadata() -> WorkerMetadata:
    """Say what this worker is; the entry point in pyproject.toml leads here, so it must not import the library."""
    from arena_worker.config import ArenaConfig  # noqa: PLC0415 - keeps `import arena_worker` light

    return WorkerMetadata(
        name="arena",
        version=__version__,
        description="Plays operators against each other: one environment, any mix of policies",
        capabilities=WorkerCapabilities(
            worker_type="arena",
            supported_paradigms=("sequential", "simultaneous"),
            env_families=("gymnasium", "minigrid", "babyai", "atari", "mujoco", "pettingzoo", "mpe"),
            action_spaces=("discrete", "continuous", "multi_discrete", "multi_binary", "dict", "tuple"),
            observation_spaces=("vector", "image", "discrete", "dict", "text"),
            max_agents=64,
            supports_checkpointing=True,
            supports_resume=True,
            interactive_commands=("boards", "play", "pause", "human_input", "cancel_input"),
            estimated_memory_mb=512,
        ),
        config_model=ArenaConfig,
        example_config=_EXAMPLE,
    )
