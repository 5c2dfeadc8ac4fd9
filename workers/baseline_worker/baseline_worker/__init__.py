"""Random and passive agents on any Gymnasium environment: the floor that a trained agent has to beat."""

from importlib.metadata import PackageNotFoundError, version

from mosaic_worker.metadata import WorkerCapabilities, WorkerMetadata

__all__ = ["get_worker_metadata"]

__version__ = "0.1.0"


def get_worker_metadata() -> WorkerMetadata:
    """Say what this worker is; the entry point in pyproject.toml leads here, so it must not import the library."""
    from baseline_worker.config import BaselineConfig  # noqa: PLC0415 - keeps `import baseline_worker` light

    try:
        gymnasium_version = version("gymnasium")
    except PackageNotFoundError:
        gymnasium_version = None
    return WorkerMetadata(
        name="baseline",
        version=__version__,
        description="Random and passive agents on any Gymnasium environment",
        upstream_library="gymnasium",
        upstream_version=gymnasium_version,
        capabilities=WorkerCapabilities(
            worker_type="baseline",
            supported_paradigms=("sequential",),
            env_families=("gymnasium", "classic_control", "toy_text"),
            action_spaces=("discrete", "continuous", "multi_discrete", "multi_binary", "dict", "tuple"),
            observation_spaces=("vector", "image", "discrete", "dict", "text"),
            interactive_commands=(
                *("reset", "step", "init_agent", "begin_episode", "select_action", "select_actions"),
            ),
            estimated_memory_mb=128,
        ),
        config_model=BaselineConfig,
        environments=_environment_ids,
        example_config={"agent": "random", "env_id": "CartPole-v1", "episodes": 200, "seed": 7},
    )


def _environment_ids() -> list[str]:
    import gymnasium  # noqa: PLC0415 - half a second that only --describe pays

    return list(gymnasium.registry)
