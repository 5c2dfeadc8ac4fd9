"""Metadata of a worker: its identity, its capabilities and its config schema."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

import mosaic_worker
from mosaic_worker.config import WorkerConfig

__all__ = ["PROTOCOL", "AlgorithmCard", "Parameter", "WorkerCapabilities", "WorkerMetadata"]

PROTOCOL = 1


class WorkerCapabilities(BaseModel):
    """Capabilities and requirements of a worker."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    worker_type: str = Field(min_length=1, description="The worker's kind, usually its name")
    supported_paradigms: tuple[str, ...] = Field(
        default=("sequential",), description="How agents take part: sequential, independent, self_play, …"
    )
    env_families: tuple[str, ...] = Field(default=(), description="gymnasium, atari, minigrid, mpe, …")
    action_spaces: tuple[str, ...] = Field(default=(), description="discrete, continuous, …")
    observation_spaces: tuple[str, ...] = Field(default=(), description="vector, image, text, …")
    max_agents: int = Field(default=1, ge=1)
    supports_self_play: bool = False
    supports_population: bool = False
    supports_checkpointing: bool = False
    supports_pause_resume: bool = False
    supports_resume: bool = Field(
        default=False, description="An attempt can resume from a checkpoint of an earlier one (`context.resume`)"
    )
    resume_config: dict[str, Any] = Field(
        default_factory=dict,
        description="Config fields, by dotted path, with which a new run trains on from a checkpoint of another one; "
        "the value `{checkpoint}` stands for its path, `{steps}` for the number of further steps",
    )
    policy_config: dict[str, Any] = Field(
        default_factory=dict,
        description="Config fields, by dotted path, with which the worker acts in interactive mode with a model; the "
        "value `{checkpoint}` stands for the path of the model, other values are set as they are",
    )
    evaluate_config: dict[str, Any] = Field(
        default_factory=dict,
        description="Config fields, by dotted path, with which a new run plays episodes with a model; `{checkpoint}` "
        "stands for its path, `{episodes}` for their number, `{seed}` for the first seed",
    )
    script_config: dict[str, Any] = Field(
        default_factory=dict,
        description="Config fields, by dotted path, with which a run executes a shell script; `{script}` stands for "
        "its path, `{arguments}` for its arguments, `{seed}` for the run's seed",
    )
    parameters_field: str = Field(
        default="", description="Config field, by dotted path, that takes the hyperparameters of `algorithms`"
    )
    interactive_commands: tuple[str, ...] = Field(
        default=(), description="Commands of interactive mode besides ping and stop; empty: no interactive mode"
    )
    requires_gpu: bool = False
    gpu_memory_mb: int | None = Field(default=None, ge=0)
    cpu_cores: int = Field(default=1, ge=1)
    estimated_memory_mb: int = Field(default=512, ge=1)


class Parameter(BaseModel):
    """One hyperparameter of an algorithm, as its code declares it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    type: Literal["bool", "int", "float", "str"]
    default: bool | int | float | str | None = None
    help: str = ""


class AlgorithmCard(BaseModel):
    """One algorithm of a worker: whether it runs here, what is missing if not, and its hyperparameters."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    family: str = ""
    actions: str = Field(default="", description="The action spaces it learns in: discrete, continuous, …")
    runs: bool = Field(description="Whether it runs in this environment")
    profiles: tuple[str, ...] = Field(default=(), description="The worker's profiles in which it can run")
    needs: str = Field(default="", description="What is missing, and how to get it, if it does not run here")
    source: str = Field(default="", description="Origin and version of the code: `cleanrl 0.4.8`, `checkout fe8d8a0`")
    parameters: tuple[Parameter, ...] = ()


class WorkerMetadata(BaseModel):
    """A worker's identity, the library that it wraps, its capabilities and its config model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(pattern=r"^[a-z][a-z0-9_-]*$")
    version: str
    description: str = ""
    author: str = ""
    homepage: str = ""
    upstream_library: str | None = None
    upstream_version: str | None = None
    license: str = ""
    capabilities: WorkerCapabilities
    config_model: type[WorkerConfig] = Field(exclude=True)
    example_config: dict[str, Any] = Field(description="A config, without run_id, that finishes in a few seconds")
    algorithms: Callable[[], Sequence[AlgorithmCard]] = Field(
        default=tuple, exclude=True, description="For a worker with several algorithms: lists them, called on demand"
    )
    environments: Callable[[], Sequence[str]] = Field(
        default=tuple,
        exclude=True,
        description="Lists the ids that `env_id` may have, only when asked; none: they are not checked at submit",
    )

    def describe(self) -> dict[str, Any]:
        """Return everything as plain JSON values."""
        schema = self.config_model.model_json_schema()
        # The platform sets the run id, so a config need not have one.
        schema["required"] = [name for name in schema.get("required", []) if name != "run_id"]
        return {
            "metadata": self.model_dump(mode="json", exclude={"capabilities", "example_config"}),
            "capabilities": self.capabilities.model_dump(mode="json"),
            "config_schema": schema,
            "example_config": self.example_config,
            "algorithms": [card.model_dump(mode="json") for card in self.algorithms()],
            "environments": list(self.environments()),
            "kit_version": mosaic_worker.__version__,
            "protocol": PROTOCOL,
        }
