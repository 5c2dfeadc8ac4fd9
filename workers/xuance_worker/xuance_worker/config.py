"""What a XuanCe run can be told."""

from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from mosaic_worker.config import InputPath
from mosaic_worker.errors import ConfigError
from mosaic_worker.frames.settings import FrameConfig
from xuance_worker.registry import Agent, find_agent

__all__ = ["Mode", "XuanCeWorkerConfig"]

Mode = Literal["train", "resume_training", "policy_eval", "interactive"]
_NEEDS: dict[Mode, tuple[str, ...]] = {
    "train": ("env_id", "running_steps"),
    "resume_training": ("checkpoint_path", "running_steps"),
    "policy_eval": ("policy_path",),
    "interactive": (),
}


class XuanCeWorkerConfig(FrameConfig):
    """A run of the XuanCe worker."""

    mode: Mode = Field(default="train", description="What to do")
    algorithm: str = Field(default="mappo", description="The algorithm, in any case (mosaic workers describe xuance)")
    method: str | None = Field(default=None, description="Another name of algorithm")
    env: str = Field(
        default="", description="The family of environments: mpe, sisl, butterfly, classic_control, …; found by env_id"
    )
    env_id: str = Field(default="", description="The environment, such as simple_spread_v3 or CartPole-v1")
    running_steps: int = Field(
        default=0, ge=0, description="The training budget in environment steps; resume_training: further steps"
    )
    learning_rate: float | None = Field(
        default=None, gt=0, description="For actor and critic where they have their own"
    )
    batch_size: int | None = Field(
        default=None, ge=1, description="Transitions in an update; on-policy, the size of a minibatch"
    )
    parallels: int | None = Field(default=None, ge=1, le=256, description="Environments that are stepped in turn")
    backend: Literal["torch"] = Field(default="torch", description="The deep learning library")
    device: str = Field(default="cpu", pattern=r"^(cpu|cuda(:\d+)?)$", description="cpu, cuda or cuda:N")
    config_path: InputPath | None = Field(
        default=None, description="A YAML file of XuanCe settings, instead of its own"
    )
    overrides: dict[str, Any] = Field(
        default_factory=dict, description="Any key of XuanCe's settings (mosaic workers describe xuance)"
    )
    checkpoint_every: int = Field(default=10_000, ge=1, description="Save a checkpoint every so many steps")
    checkpoint_keep: int = Field(default=5, ge=1, description="Keep so many checkpoints, the newest")
    checkpoint_path: InputPath | None = Field(
        default=None, description="resume_training: the checkpoint to continue from, or a run's folder"
    )
    policy_path: InputPath | None = Field(
        default=None, description="policy_eval and interactive: the checkpoint, or a run's folder"
    )
    eval_episodes: int = Field(default=100, ge=1, description="policy_eval: episodes; episode i has seed + i")
    deterministic: bool = Field(
        default=True, description="policy_eval and interactive: the likeliest action, where the algorithm can say it"
    )

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        problems: list[InitErrorDetails] = []
        if self.method is not None and "algorithm" in self.model_fields_set and self.method != self.algorithm:
            problems.append(_problem("method", self.method, f"algorithm says {self.algorithm!r}; give one of them"))
        try:
            agent = find_agent(self.method or self.algorithm)
            if agent.fails and self.mode == "train":
                problems.append(_problem("algorithm", agent.name, f"it does not run here: {agent.fails}"))
        except ConfigError as error:
            field, _, why = str(error).partition(": ")
            problems.append(_problem(field, self.method or self.algorithm, why))
        problems += [
            _problem(name, getattr(self, name), f"mode {self.mode} needs it")
            for name in _NEEDS[self.mode]
            if not getattr(self, name)
        ]
        if problems:
            raise ValidationError.from_exception_data(type(self).__name__, problems)
        return self

    @property
    def agent(self) -> Agent:
        """The algorithm as XuanCe has it."""
        return find_agent(self.method or self.algorithm)


def _problem(field: str, value: Any, why: str) -> InitErrorDetails:
    return {"type": PydanticCustomError("refused", "{why}", {"why": why}), "loc": (field,), "input": value}
