"""A worker that imports torch and gymnasium and makes a few real updates."""

from mosaic_worker.metadata import WorkerCapabilities, WorkerMetadata
from torch_worker.config import TorchConfig

__all__ = ["get_worker_metadata"]


def get_worker_metadata() -> WorkerMetadata:
    """Say what this worker is."""
    return WorkerMetadata(
        name="torch",
        version="0.1.0",
        description="REINFORCE on CartPole, for a few updates",
        capabilities=WorkerCapabilities(
            worker_type="torch",
            supported_paradigms=("sequential",),
            env_families=("gymnasium",),
            action_spaces=("discrete",),
            observation_spaces=("box",),
            estimated_memory_mb=512,
        ),
        example_config={"updates": 3, "seed": 7},
        config_model=TorchConfig,
    )
