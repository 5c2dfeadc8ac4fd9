"""What an RLlib run can be told: `RayWorkerConfig` and its parts.

A config is nested (`training: {algorithm: PPO}`) or flat (`algorithm: PPO`): each field of a part may stand at the top.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from mosaic_worker.config import InputPath
from mosaic_worker.frames.settings import FrameConfig

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "CheckpointConfig",
    "EnvironmentConfig",
    "Mode",
    "PettingZooAPIType",
    "PolicyConfiguration",
    "RayWorkerConfig",
    "ResourceConfig",
    "SelfPlayConfig",
    "TrainingConfig",
]

Mode = Literal["train", "resume_training", "policy_eval", "interactive"]
Algorithm = Literal["PPO", "DQN", "SAC", "IMPALA", "APPO", "A2C"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
_PARTS = ("environment", "training", "resources", "checkpoint", "self_play")
_NEEDS: dict[Mode, tuple[str, ...]] = {
    "train": ("environment.env_id", "training.total_timesteps"),
    "resume_training": ("checkpoint_path", "training.total_timesteps"),
    "policy_eval": ("policy_path",),
    "interactive": (),
}


class PolicyConfiguration(StrEnum):
    """Which agents share a policy."""

    PARAMETER_SHARING = "PARAMETER_SHARING"
    INDEPENDENT = "INDEPENDENT"
    SELF_PLAY = "SELF_PLAY"
    SHARED_VALUE_FUNCTION = "SHARED_VALUE_FUNCTION"


class PettingZooAPIType(StrEnum):
    """How a PettingZoo environment is stepped: agents act in turn, or all at once."""

    AEC = "AEC"
    PARALLEL = "PARALLEL"


def _upper(value: Any) -> Any:
    return value.upper() if isinstance(value, str) else value


def _in_any_case(*names: str | None) -> tuple[BeforeValidator, WithJsonSchema]:
    """Accept names in upper and lower case, and say so in the JSON Schema."""
    lower = [name.lower() for name in names if name is not None]
    return BeforeValidator(_upper), WithJsonSchema({"enum": [name and str(name) for name in names] + lower})


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EnvironmentConfig(_Part):
    """The environment that is trained on."""

    family: str = Field(
        default="", description="sisl, classic, butterfly, mpe, gymnasium or module; found by env_id if left out"
    )
    env_id: str = Field(
        default="",
        description="The environment, such as waterworld_v4, CartPole-v1 or module:my_package.my_env",
    )
    api_type: Annotated[PettingZooAPIType | None, *_in_any_case(*PettingZooAPIType, None)] = Field(
        default=None, description="AEC or PARALLEL; left out: PARALLEL where the environment has it"
    )
    env_kwargs: dict[str, Any] = Field(default_factory=dict, description="Arguments of the environment")


class TrainingConfig(_Part):
    """What is learned, and for how long."""

    algorithm: Annotated[Algorithm, *_in_any_case(*ALGORITHMS)] = Field(
        default="PPO", description="PPO, DQN, SAC, IMPALA, APPO, or A2C, which is a reduced PPO"
    )
    total_timesteps: int = Field(
        default=0, ge=0, description="The training budget in environment steps; resume_training: further steps"
    )
    algo_params: dict[str, Any] = Field(
        default_factory=dict, description="RLlib's training settings (mosaic workers describe ray)"
    )
    network: dict[str, Any] = Field(
        default_factory=dict, description="RLlib's default networks, such as fcnet_hiddens and fcnet_activation"
    )
    framework: Literal["torch"] = Field(default="torch", description="The deep learning library")


class ResourceConfig(_Part):
    """The processes of a training and the Ray cluster that they run on."""

    num_workers: int = Field(
        default=2, ge=0, le=1000, description="Env runners, each an actor of Ray; 0: environments run in the driver"
    )
    num_envs_per_worker: int = Field(default=1, ge=1, le=1000, description="Environments in each env runner")
    num_cpus: float = Field(default=1, ge=0, description="CPUs of each env runner")
    num_gpus: float = Field(default=0, ge=0, description="GPUs of the learner, which is in the driver")
    address: str = Field(
        default="", description="Address of a running Ray cluster, host:port; empty: a cluster of the run's own"
    )
    object_store_mb: int = Field(default=200, ge=80, description="Shared memory of the run's own cluster, in MB")


class CheckpointConfig(_Part):
    """When checkpoints are saved."""

    checkpoint_every: int = Field(default=50_000, ge=1, description="Save a checkpoint every so many steps")
    checkpoint_keep: int = Field(default=5, ge=1, description="Keep so many checkpoints, the newest")


class SelfPlayConfig(_Part):
    """The league of SELF_PLAY: frozen copies of the learner that it plays against."""

    league_size: int = Field(default=4, ge=1, le=50, description="Frozen copies; a new one replaces the oldest")
    snapshot_win_rate: float = Field(
        default=0.6, gt=0, le=1, description="Freeze a copy when the learner wins so often against the league"
    )
    snapshot_games: int = Field(default=200, ge=1, description="Games against the league that this is judged by")
    mirror: float = Field(
        default=0.5, ge=0, le=1, description="Share of games in which the learner plays all seats, against itself"
    )


class RayWorkerConfig(FrameConfig):
    """A run of the RLlib worker."""

    mode: Mode = Field(default="train", description="What to do")
    environment: EnvironmentConfig = Field(default_factory=EnvironmentConfig)
    policy_configuration: Annotated[PolicyConfiguration, *_in_any_case(*PolicyConfiguration)] = Field(
        default=PolicyConfiguration.PARAMETER_SHARING, description="Which agents share a policy"
    )
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    resources: ResourceConfig = Field(default_factory=ResourceConfig)
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    self_play: SelfPlayConfig = Field(default_factory=SelfPlayConfig)
    checkpoint_path: InputPath | None = Field(
        default=None, description="resume_training: the checkpoint to continue from, or a run's folder"
    )
    policy_path: InputPath | None = Field(
        default=None, description="policy_eval and interactive: the checkpoint, or a run's folder"
    )
    eval_episodes: int = Field(default=100, ge=1, description="policy_eval: episodes; episode i has seed + i")
    deterministic: bool = Field(default=True, description="policy_eval and interactive: the likeliest action")
    opponents: dict[str, Literal["random"] | InputPath] = Field(
        default_factory=dict, description="policy_eval: agents that another checkpoint acts for, or `random`"
    )

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, given: Any) -> Any:
        """Move flat fields into their parts."""
        if not isinstance(given, Mapping):
            return given
        found = dict(given)
        for part, model in cls._parts().items():
            flat = {name: found.pop(name) for name in model.model_fields if name in found}
            nested = found.get(part)
            if not flat or (nested is not None and not isinstance(nested, Mapping)):
                continue
            if twice := sorted(set(nested or {}) & set(flat)):
                raise PydanticCustomError(
                    "twice", "{name} is also in {part}; give it once", {"name": twice[0], "part": part}
                )
            found[part] = {**(nested or {}), **flat}
        return found

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        problems: list[InitErrorDetails] = []
        for field in _NEEDS[self.mode]:
            value: Any = self
            for name in field.split("."):
                value = getattr(value, name)
            if not value:
                kind = PydanticCustomError("refused", "mode {mode} needs it", {"mode": self.mode})
                problems.append({"type": kind, "loc": tuple(field.split(".")), "input": value})
        if problems:
            raise ValidationError.from_exception_data(type(self).__name__, problems)
        return self

    @classmethod
    def _parts(cls) -> dict[str, type[BaseModel]]:
        return {name: cls.model_fields[name].annotation for name in _PARTS}  # type: ignore[misc]

    @classmethod
    def model_json_schema(cls, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """List the fields of the parts at the top, too, since a config may be flat, and each algorithm's settings."""
        from ray_worker.algo_params import schema_of  # noqa: PLC0415 - it imports RLlib, which takes seconds

        schema = super().model_json_schema(*args, **kwargs)
        flat = [schema["$defs"][model.__name__]["properties"] for model in cls._parts().values()]
        return {
            **schema,
            "properties": {name: field for part in (*flat, schema["properties"]) for name, field in part.items()},
            "$defs": {**schema["$defs"], **{name: schema_of(name) for name in ALGORITHMS}},
            "allOf": [rule for name in ALGORITHMS for rule in _params_rules(name)],
        }


def _params_rules(algorithm: Algorithm) -> tuple[dict[str, Any], dict[str, Any]]:
    """The conditions under which `algo_params`, flat or nested, are those of an algorithm."""
    is_it = {"properties": {"algorithm": {"enum": [algorithm, algorithm.lower()]}}, "required": ["algorithm"]}
    params = {"properties": {"algo_params": {"$ref": f"#/$defs/{algorithm}"}}}
    is_nested = {"properties": {"training": is_it}, "required": ["training"]}
    return {"if": is_it, "then": params}, {"if": is_nested, "then": {"properties": {"training": params}}}
