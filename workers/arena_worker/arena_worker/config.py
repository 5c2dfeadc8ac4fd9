"""The config of a shard: an environment, operators, who plays whom, and which episodes."""

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from mosaic_worker.config import InputPath, WorkerConfig, near
from mosaic_worker.frames.settings import LiveFrameFields

__all__ = [
    "EVERY_AGENT",
    "HUMAN",
    "OWN_WORKERS",
    "ArenaConfig",
    "Deadlines",
    "EnvironmentConfig",
    "Failures",
    "LineupConfig",
    "OperatorConfig",
    "SeedConfig",
]

EVERY_AGENT = "*"
HUMAN = "human"
OWN_WORKERS = (HUMAN, "random", "noop")
"""Operators that need no process: the arena plays them itself."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EnvironmentConfig(_Part):
    """Where is played."""

    id: str = Field(min_length=1, description="A Gymnasium id, or a PettingZoo module such as tictactoe_v3")
    family: Literal["gymnasium", "aec", "parallel"] = Field(
        default="gymnasium", description="gymnasium: one agent; aec: agents in turn; parallel: agents move at once"
    )
    kwargs: dict[str, Any] = Field(default_factory=dict, description="Arguments of the environment")
    max_steps: int | None = Field(default=None, ge=1, description="Steps after which an episode is cut off")
    imports: list[str] = Field(default_factory=list, description="Modules that register environments when imported")
    competitive: bool | None = Field(
        default=None, description="Whether agents play against each other; known of PettingZoo's games, else no"
    )


class OperatorConfig(_Part):
    """Who decides: a policy of a worker, or `human`, or the arena's own `random` and `noop`."""

    worker: str = Field(min_length=1, description="The policy's worker; human, random and noop need none")
    profile: str = Field(default="default", min_length=1, description="The profile of that worker")
    checkpoint: InputPath | None = Field(default=None, description="The model: a path, or run:NAME@best")
    config: dict[str, Any] = Field(default_factory=dict, description="Fields of the worker's own config")


class LineupConfig(_Part):
    """Which operator plays which agent."""

    name: str = Field(min_length=1)
    agents: dict[str, str] = Field(min_length=1, description="Agent to operator; * stands for every other agent")


class SeedConfig(_Part):
    """How the environment of an episode is seeded."""

    mode: Literal["procedural", "fixed", "list"] = Field(
        default="procedural", description="procedural: from root and episode; fixed: values[0]; list: values[episode]"
    )
    root: int = Field(default=0, ge=0, description="The root of every seed of the experiment")
    values: list[int] = Field(default_factory=list, description="Seeds for fixed and list; missing ones count on")

    @model_validator(mode="after")
    def _has_values(self) -> Self:
        if self.mode != "procedural" and not self.values:
            raise ValueError(f"seeds of mode {self.mode} need values")
        return self


class PlayConfig(_Part):
    """Episodes of one lineup."""

    lineup: str
    episodes: tuple[int, int] = Field(description="The first episode, and the one after the last")

    @model_validator(mode="after")
    def _is_range(self) -> Self:
        first, end = self.episodes
        if not 0 <= first <= end:
            raise ValueError(
                f"episodes {list(self.episodes)} is not a range: give the first and the one after the last"
            )
        return self


class Failures(_Part):
    """What happens when a policy raises, hangs, dies or moves illegally."""

    retry: int = Field(default=0, ge=0, le=100, description="How often the same decision is asked for again")
    then: Literal["forfeit", "random_legal", "noop", "fail"] = Field(
        default="forfeit", description="forfeit: the others win; random_legal, noop: play on; fail: the episode failed"
    )


class Deadlines(_Part):
    """Seconds that are waited for a policy, or for the environment."""

    start_s: float = Field(default=180.0, gt=0, description="For its process to start and load the model")
    action_s: float = Field(default=60.0, gt=0, description="For a decision")
    step_s: float = Field(default=300.0, gt=0, description="For a reset or a step of the environment")


class RecordConfig(_Part):
    """What is kept besides the record of each episode."""

    steps: bool = Field(default=False, description="Write steps.jsonl: each action and reward")
    videos: list[int] = Field(default_factory=list, description="Episodes of which a video is made, in every lineup")


class ReplayConfig(_Part):
    """Episodes to play again."""

    records: list[dict[str, Any]] = Field(min_length=1, description="Records as in episodes.jsonl")
    steps: InputPath | None = Field(default=None, description="steps.jsonl with their actions; else policies decide")
    offset: int = Field(default=0, ge=0, description="Bytes of that file before the first of their steps")


class ArenaConfig(WorkerConfig, LiveFrameFields):
    """A shard of an experiment, a session in manual mode, or a replay."""

    mode: Literal["script", "manual", "replay"] = Field(
        default="script", description="script: play `play`; manual: an interactive run; replay: play `replay` again"
    )
    environment: EnvironmentConfig
    operators: dict[str, OperatorConfig] = Field(min_length=1)
    lineups: list[LineupConfig] = Field(min_length=1)
    seeds: SeedConfig = Field(default_factory=SeedConfig)
    play: list[PlayConfig] = Field(default_factory=list)
    failures: Failures = Field(default_factory=Failures)
    deadlines: Deadlines = Field(default_factory=Deadlines)
    record: RecordConfig = Field(default_factory=RecordConfig)
    replay: ReplayConfig | None = None
    step_s: float = Field(
        default=0.0, ge=0, le=3600, description="Least seconds from one step of an episode to the next"
    )
    experiment: str | None = Field(default=None, description="The experiment that this is a shard of")
    lanes: int = Field(default=16, ge=1, le=1024, description="Episodes that are played at the same time")

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        names = [lineup.name for lineup in self.lineups]
        if len(set(names)) != len(names):
            raise ValueError(f"lineups have the same name: {', '.join(sorted(names))}")
        for lineup in self.lineups:
            for agent, operator in lineup.agents.items():
                if operator not in self.operators:
                    raise ValueError(
                        f"lineups.{lineup.name}.agents.{agent}: there is no operator {operator!r}"
                        f"{near(operator, list(self.operators))}"
                    )
        for play in self.play:
            if play.lineup not in names:
                raise ValueError(f"play: there is no lineup {play.lineup!r}{near(play.lineup, names)}")
        if self.mode == "replay" and self.replay is None:
            raise ValueError("replay: missing; give records")
        return self
