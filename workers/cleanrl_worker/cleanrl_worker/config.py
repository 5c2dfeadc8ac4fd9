"""The config of a CleanRL run: five fields, and `extras` for the rest."""

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, InitErrorDetails

from cleanrl_worker.availability import algorithm_cards, find_script
from cleanrl_worker.problems import parameter_problems, problem
from cleanrl_worker.registry import DEFAULT_ALGO_REGISTRY
from cleanrl_worker.schema import complete
from mosaic_worker.config import InputPath, WorkerConfig, near
from mosaic_worker.frames.settings import FastLaneSettings, FrameFields

__all__ = ["CleanRLExtras", "CleanRLWorkerConfig", "Mode", "Stage"]

Mode = Literal["train", "curriculum", "resume_training", "policy_eval", "interactive", "script"]
_NEEDS: dict[Mode, tuple[str, ...]] = {
    "train": ("env_id", "total_timesteps"),
    "curriculum": ("total_timesteps",),
    "resume_training": ("total_timesteps", "extras.checkpoint_path"),
    "policy_eval": ("extras.policy_path",),
    "script": ("extras.script",),
}
_INSTEAD = {"extras.checkpoint_path": "extras.policy_path"}
"""A field that may replace another."""
_EARLIER_NAMES = {
    "MOSAIC_FASTLANE_INTERVAL_MS": "CLEANRL_FASTLANE_INTERVAL_MS",
    "MOSAIC_FASTLANE_MAX_DIM": "CLEANRL_FASTLANE_MAX_DIM",
}
_PRESETS = ("BABYAI_GOTO_CURRICULUM", "BABYAI_DOORKEY_CURRICULUM")


class Stage(BaseModel):
    """One environment of a curriculum, and the condition that ends the stage; the last stage never ends."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    env_id: str = Field(min_length=1, description="The environment of this stage")
    steps: int | None = Field(default=None, ge=1, description="End after this many steps: short for steps>=N")
    condition: str | None = Field(
        default=None,
        description="End when this holds: steps>=N, episodes>=N, episode_return>=X, or several joined by |",
    )


class CleanRLExtras(FrameFields):
    """Optional settings."""

    mode: Literal["train", "resume_training", "policy_eval", "interactive", "script"] = Field(
        default="train", description="What to do; a curriculum_schedule makes a training of mode train follow it"
    )
    cuda: bool = Field(default=False, description="Use a GPU")
    use_cuda: bool = Field(default=False, description="Alias of cuda")
    tensorboard_dir: str = Field(default="tensorboard", description="Where TensorBoard files go, in the run's folder")
    track_wandb: bool = Field(default=False, description="Also log to Weights & Biases")
    wandb_mode: Literal["online", "offline"] = Field(
        default="offline", description="offline keeps W&B's files in the run's folder; online sends them"
    )
    wandb_project_name: str = Field(default="cleanRL", description="The project at W&B")
    wandb_entity: str | None = Field(default=None, description="The user or team at W&B")
    algo_params: dict[str, bool | int | float | str | None] = Field(
        default_factory=dict, description="Hyperparameters of the algorithm (mosaic workers describe cleanrl)"
    )
    capture_video: bool = Field(default=False, description="Keep videos of episodes")
    checkpoint_every: int = Field(default=10_000, ge=1, description="ppo: steps between checkpoints")
    checkpoint_keep: int = Field(default=10, ge=1, description="ppo: number of newest checkpoints to keep")
    curriculum_schedule: list[Stage] | str | None = Field(
        default=None, description=f"Stages of environments, or a preset: {', '.join(_PRESETS)}"
    )
    checkpoint_path: InputPath | None = Field(
        default=None, description="resume_training: the checkpoint to resume from, or a run's folder"
    )
    policy_path: InputPath | None = Field(
        default=None,
        description="policy_eval and interactive: the trained model, or a run's folder;"
        " resume_training: as checkpoint_path, if that is not given",
    )
    eval_every: int | None = Field(
        default=None, ge=1, description="ppo: evaluate every N steps, on the same episodes, and keep the best model"
    )
    eval_episodes: int = Field(
        default=10, ge=1, description="Episodes of an evaluation; in policy_eval, episode i has seed + i"
    )
    eval_num_envs: int = Field(default=8, ge=1, le=256, description="Episodes that are evaluated at a time")
    eval_gamma: float = Field(
        default=0.99, ge=0, le=1, description="policy_eval: discount factor of the discounted return"
    )
    eval_repeat: int = Field(default=1, ge=1, description="policy_eval: number of repetitions")
    deterministic: bool = Field(default=True, description="Evaluation and interactive: take the most likely action")
    script: InputPath | None = Field(
        default=None, description="script: a *.sh with @description, @phases, @total_timesteps"
    )
    script_args: list[str] = Field(default_factory=list, description="script: its arguments")

    @field_validator("tensorboard_dir")
    @classmethod
    def _stays_in_the_run(cls, folder: str) -> str:
        if folder.startswith("/") or ".." in folder.split("/"):
            raise ValueError("give a path inside the run's folder, such as tensorboard")
        return folder

    @field_validator("curriculum_schedule")
    @classmethod
    def _schedule_is_readable(cls, schedule: list[Stage] | str | None) -> list[Stage] | str | None:
        from cleanrl_worker.wrappers.schedule import check_schedule  # noqa: PLC0415 - keeps Stage in one place

        if schedule is not None:
            check_schedule(schedule)
        return schedule

    def fastlane_settings(self, environ: Mapping[str, str]) -> FastLaneSettings:
        """As in the kit; two variables are also read under the names of earlier CleanRL workers of MOSAIC."""
        earlier = {name: environ[old] for name, old in _EARLIER_NAMES.items() if environ.get(old)}
        return super().fastlane_settings({**earlier, **{name: text for name, text in environ.items() if text}})

    @property
    def resumed(self) -> tuple[str, str]:
        """resume_training: the checkpoint to resume from, and the field that names it."""
        name = "checkpoint_path" if self.checkpoint_path else "policy_path"
        return getattr(self, name) or "", f"extras.{name}"

    @property
    def wants_cuda(self) -> bool:
        """Whether a GPU is to be used."""
        return self.cuda or self.use_cuda


class CleanRLWorkerConfig(WorkerConfig):
    """A run of the CleanRL worker."""

    algo: str = Field(default="ppo", description="The algorithm (mosaic workers describe cleanrl)")
    env_id: str = Field(default="", description="The environment; module:id for one that a module registers")
    total_timesteps: int = Field(default=0, ge=0, description="The training budget, in steps of the environment")
    extras: CleanRLExtras = Field(default_factory=CleanRLExtras, description="Everything else")
    raw: dict[str, Any] = Field(
        default_factory=dict, exclude=True, repr=False, description="The config as it was given"
    )

    @model_validator(mode="before")
    @classmethod
    def _keep_what_was_given(cls, given: Any) -> Any:
        return {**given, "raw": dict(given)} if isinstance(given, dict) and "raw" not in given else given

    @field_validator("algo")
    @classmethod
    def _algo_is_known(cls, algo: str) -> str:
        if algo not in DEFAULT_ALGO_REGISTRY:
            raise ValueError(f"no such algorithm{near(algo, list(DEFAULT_ALGO_REGISTRY))}")
        return algo

    @property
    def mode(self) -> Mode:
        """What the run does."""
        is_curriculum = self.extras.mode == "train" and self.extras.curriculum_schedule is not None
        return "curriculum" if is_curriculum else self.extras.mode

    @model_validator(mode="after")
    def _mode_has_what_it_needs(self) -> Self:
        problems = [
            problem(name, self._given(name), f"{self.mode} needs it")
            for name in _NEEDS.get(self.mode, ())
            if not self._given(name) and not (name in _INSTEAD and self._given(_INSTEAD[name]))
        ]
        schedule = self.extras.curriculum_schedule
        if self.extras.mode != "train" and schedule is not None:
            why = "the checkpoint has the schedule" if self.mode == "resume_training" else f"{self.mode} follows none"
            problems.append(problem("extras.curriculum_schedule", schedule, f"{why}; leave it out"))
        return self._require_no(problems)

    def _given(self, name: str) -> Any:
        part: Any = self
        for word in name.split("."):
            part = getattr(part, word)
        return part

    def _require_no(self, problems: list[InitErrorDetails]) -> Self:
        if problems:
            raise ValidationError.from_exception_data(type(self).__name__, problems)
        return self

    @model_validator(mode="after")
    def _algo_params_are_known(self) -> Self:
        if self.mode not in ("train", "curriculum", "resume_training"):
            return self
        if self.mode != "train" and self.algo != "ppo":
            problems = [problem("algo", self.algo, f"{self.mode} is done by ppo")]
        else:
            problems = parameter_problems(find_script(self.algo), self.extras.algo_params)
        return self._require_no(problems)

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Add to the schema what depends on the mode and on the algorithms of this environment."""
        schema = handler.resolve_ref_schema(handler(core))
        return complete(schema, cls.model_fields["algo"].default, _NEEDS, _INSTEAD, algorithm_cards())
