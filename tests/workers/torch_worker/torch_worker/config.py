"""What a run can be told."""

from pydantic import Field

from mosaic_worker.config import WorkerConfig


class TorchConfig(WorkerConfig):
    """How much to learn."""

    updates: int = Field(default=5, ge=1, description="episodes to play, each followed by one update of the policy")
