"""The config of a baseline run."""

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from mosaic_worker.config import near
from mosaic_worker.frames.settings import FrameConfig
from mosaic_worker.modules import import_user_module

__all__ = ["BaselineConfig"]


class BaselineConfig(FrameConfig):
    """A run of a fixed agent for a number of episodes. Episode i is reset with seed + i."""

    agent: Literal["random", "passive"] = Field(
        default="random", description="random: a sample of the action space; passive: the action that does nothing"
    )
    env_id: str = Field(
        default="CartPole-v1", description="A Gymnasium id, or module:id for one that a module registers when imported"
    )
    env_kwargs: dict[str, Any] = Field(default_factory=dict, description="Passed to gymnasium.make")
    episodes: int = Field(default=10, ge=1, description="Number of episodes")
    max_steps: int | None = Field(default=None, ge=1, description="Maximum total number of steps")
    step_events: bool = Field(default=True, description="Report every step, not only episodes")

    @model_validator(mode="before")
    @classmethod
    def _behavior_is_agent(cls, given: Any) -> Any:
        """Take `behavior`, as the original MOSAIC calls it, for `agent`."""
        if not isinstance(given, dict) or "behavior" not in given or "agent" in given:
            return given
        return {"agent" if name == "behavior" else name: value for name, value in given.items()}

    @field_validator("env_id")
    @classmethod
    def _env_exists(cls, env_id: str) -> str:
        """Refuse an id that is not registered."""
        import gymnasium  # noqa: PLC0415 - takes half a second, which --describe does not need

        module, _, name = env_id.rpartition(":")
        if module:
            import_user_module(module)
        if name not in gymnasium.registry:
            known = list(gymnasium.registry)
            raise ValueError(f"no such environment among the {len(known)} registered{near(name, known)}")
        return env_id
