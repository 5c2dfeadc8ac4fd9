"""A worker that emits as fast as it can, or misbehaves in one chosen way."""

from mosaic_worker.metadata import WorkerCapabilities, WorkerMetadata

__all__ = ["get_worker_metadata"]


def get_worker_metadata() -> WorkerMetadata:
    """Say what this worker is."""
    from stress_worker.cli import StressConfig

    return WorkerMetadata(
        name="stress",
        version="0.1.0",
        description="Emits flat out, or misbehaves on request",
        capabilities=WorkerCapabilities(
            worker_type="stress",
            supported_paradigms=("sequential",),
            env_families=(),
            action_spaces=(),
            observation_spaces=(),
            supports_checkpointing=True,
            supports_resume=True,
            evaluate_config={"models": "{checkpoint}", "events": "{episodes}", "seed": "{seed}"},
            estimated_memory_mb=64,
        ),
        example_config={"events": 100},
        config_model=StressConfig,
    )
