"""The experiment file: its fields, their types and defaults."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from mosaic_bus.messages import Number, ProfileName, Resources, Tag, Whole, WorkerName
from mosaic_bus.wording import near_names
from mosaic_services.experiments.tasks import Family, family_of
from mosaic_services.statistics.looks import CAP, FIRST_LOOK

__all__ = [
    "Budget",
    "Deadlines",
    "Environment",
    "Experiment",
    "ExperimentName",
    "Failures",
    "Lineup",
    "Operator",
    "Seeds",
    "Until",
]

# Part of topics and of paths.
ExperimentName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
# The name of a folder, so with no dot in front.
OperatorName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_@-][A-Za-z0-9_.@-]{0,63}$")]
Count = Annotated[Whole, Field(ge=1, le=10_000_000)]
MOST_OPERATORS = 200
_DUEL = 2


class Part(BaseModel):
    """Base of all parts of the file: unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Environment(Part):
    """Where the operators play."""

    id: str = Field(min_length=1, max_length=200)
    family: Family = Field(default="gymnasium", description="found from the id if it is left out")
    kwargs: dict[str, Any] = Field(default_factory=dict, description="passed to the environment's maker")
    max_steps: Count | None = Field(default=None, description="steps after which an episode is cut")
    imports: tuple[str, ...] = Field(default=(), description="modules that register environments when imported")
    agents: tuple[str, ...] = Field(default=(), description="names of the players of a game that MOSAIC does not know")
    competitive: bool | None = Field(
        default=None,
        description="whether agents play against each other; known of PettingZoo's games",
    )
    profile: ProfileName = Field(default="default", description="profile of the arena worker that has the environment")

    @model_validator(mode="before")
    @classmethod
    def _find_family(cls, fields: Any) -> Any:
        if isinstance(fields, str):
            fields = {"id": fields}
        if isinstance(fields, dict) and isinstance(fields.get("id"), str) and fields.get("family") is None:
            fields = {**fields, "family": family_of(fields["id"])}
        return fields

    @model_validator(mode="before")
    @classmethod
    def _find_competition(cls, fields: Any) -> Any:
        """Take two players that are named for opponents."""
        if isinstance(fields, dict) and fields.get("competitive") is None:
            players = fields.get("agents")
            if isinstance(players, list | tuple) and len(players) == _DUEL:
                return {**fields, "competitive": True}
        return fields


class Operator(Part):
    """Who decides: a worker with a checkpoint, or with a config of its own."""

    worker: WorkerName
    profile: ProfileName = "default"
    checkpoint: str | None = Field(default=None, description="run:NAME@best, run:NAME@last, run:NAME@STEP or a path")
    config: dict[str, Any] = Field(default_factory=dict, description="the worker's own configuration")

    @model_validator(mode="before")
    @classmethod
    def _config_beside(cls, fields: Any) -> Any:
        """Let the worker's own keys stand beside ours: `{worker: baseline, behavior: random}`."""
        if not isinstance(fields, dict):
            return fields
        own = {key: value for key, value in fields.items() if key not in cls.model_fields}
        for key in own:
            near = near_names(str(key), cls.model_fields, 1)
            if near:
                raise ValueError(
                    f"field {key!r} is unknown: did you mean {near[0]}? (the worker's own go under config)"
                )
        config = fields.get("config")
        if not own or not (config is None or isinstance(config, dict)):
            return fields
        ours = {key: value for key, value in fields.items() if key not in own}
        return {**ours, "config": {**(config or {}), **own}}


class Seeds(Part):
    """Seeds of environments and agents. All lineups meet the same ones."""

    mode: Literal["procedural", "fixed", "list"] = "procedural"
    root: Whole = Field(default=0, ge=0, lt=2**63)
    values: tuple[Annotated[Whole, Field(ge=0, lt=2**63)], ...] = Field(
        default=(), description="seeds of the environment, by episode; missing ones count on from the last"
    )

    @model_validator(mode="after")
    def _values_fit(self) -> Self:
        if self.mode != "procedural" and not self.values:
            raise ValueError(f"mode {self.mode} needs values")
        if self.mode == "procedural" and self.values:
            raise ValueError("mode procedural makes its seeds from root: leave values out, or use mode list")
        return self


class Failures(Part):
    """What happens when an operator raises, hangs or moves illegally."""

    retry: Whole = Field(default=0, ge=0, le=100, description="how often it is asked again")
    then: Literal["forfeit", "random_legal", "noop", "fail"] = "forfeit"


class Deadlines(Part):
    """How long an operator, or a step of the environment, may take."""

    start_s: Number = Field(default=180.0, gt=0, le=86_400)
    action_s: Number = Field(default=60.0, gt=0, le=86_400)
    step_s: Number = Field(default=300.0, gt=0, le=86_400)


class Until(Part):
    """When to stop before the last episode: looked at after 50, 100, 200 … complete episodes."""

    width: Number | None = Field(default=None, gt=0, description="stop when every interval is at most this wide")
    decided: bool = Field(default=False, description="stop when every comparison is decided")
    cap: Annotated[Count, Field(ge=FIRST_LOOK)] = Field(default=CAP, description="most episodes of each lineup")

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        if (self.width is not None) == self.decided:
            raise ValueError("give either width: X or decided: true")
        return self


class Budget(Part):
    """What the experiment may not exceed: it stops, with what it has."""

    wall_s: Number | None = Field(default=None, gt=0, description="seconds from the start")
    steps: Annotated[Whole, Field(ge=1)] | None = Field(default=None, description="steps of all episodes together")
    episodes: Annotated[Whole, Field(ge=1)] | None = Field(default=None, description="episodes of all lineups together")


class Pacing(Part):
    """How fast episodes are played at most: each waits between its steps."""

    steps_per_second: Number | None = Field(default=None, gt=0, le=1000)
    step_delay_ms: Number | None = Field(default=None, ge=0, le=3_600_000, description="the original's word for it")

    @model_validator(mode="after")
    def _one_pace(self) -> Self:
        if self.steps_per_second is not None and self.step_delay_ms is not None:
            raise ValueError("give either steps_per_second or step_delay_ms")
        return self

    @property
    def step_s(self) -> float:
        """Seconds from one step to the next."""
        return 1 / self.steps_per_second if self.steps_per_second else (self.step_delay_ms or 0.0) / 1000


class Lineup(Part):
    """Which operator plays which agent; `*` stands for every agent."""

    name: str
    agents: dict[str, str]


class Experiment(Part):
    """One experiment: an environment, operators, and the episodes that they play."""

    name: ExperimentName
    environment: Environment
    operators: dict[OperatorName, Operator] = Field(min_length=1, max_length=MOST_OPERATORS)
    lineups: Literal["each", "pairs"] | tuple[dict[str, str], ...] | None = Field(
        default=None, description="each, pairs, or a list of maps from agent (or group, or *) to operator"
    )
    groups: dict[str, tuple[str, ...]] = Field(default_factory=dict, description="names for sets of agents")
    swap_sides: bool = Field(default=True, description="of pairs: each also plays the other side")
    episodes: Count = 100
    seeds: Seeds = Field(default_factory=Seeds)
    failures: Failures = Field(default_factory=Failures)
    deadlines: Deadlines = Field(default_factory=Deadlines)
    until: Until | None = None
    budget: Budget = Field(default_factory=Budget)
    pacing: Pacing = Field(default_factory=Pacing)
    videos: tuple[Annotated[Whole, Field(ge=0)], ...] = Field(default=(), description="episodes that are filmed")
    target: float | None = Field(
        default=None, allow_inf_nan=False, description="score that the report's optimality gap refers to"
    )
    steps: bool = Field(default=False, description="also record every step, in steps.jsonl")
    lanes: Whole = Field(default=16, ge=1, le=1024, description="episodes that a shard plays at the same time")
    exact: bool = Field(default=False, description="refuse results of hosts whose numerics differ")
    shards: Annotated[Whole, Field(ge=1, le=1000)] | None = Field(
        default=None, description="pieces that run at the same time; made from the hosts' CPUs if left out"
    )
    resources: Resources = Field(default_factory=lambda: Resources(cpus=1.0, memory_mb=1024))
    requires: tuple[Tag, ...] = Field(default=(), max_length=32, description="tags that hosts must have")
    description: str = Field(default="", max_length=10_000)

    @field_validator("lineups", mode="before")
    @classmethod
    def _kind_of_lineups(cls, value: Any) -> Any:
        if value is None or value in ("each", "pairs"):
            return value
        maps = isinstance(value, list | tuple) and value and all(isinstance(each, dict) for each in value)
        if maps and all(isinstance(name, str) for each in value for name in each.values()):
            return tuple(value)
        raise ValueError("must be each, pairs, or a list of maps such as {player_1: ppo, player_2: random}")

    @field_validator("seeds", mode="before")
    @classmethod
    def _root_alone(cls, value: Any) -> Any:
        """Read `seeds: 7` as a root and `seeds: [1, 2]` as a list."""
        if isinstance(value, int) and not isinstance(value, bool):
            return {"root": value}
        return {"mode": "list", "values": value} if isinstance(value, list) else value
