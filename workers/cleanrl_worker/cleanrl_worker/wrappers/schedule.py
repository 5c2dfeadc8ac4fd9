"""Schedules of a curriculum: stages of environments, and the conditions that end them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from cleanrl_worker.config import Stage
from mosaic_worker.config import near

__all__ = [
    "BABYAI_DOORKEY_CURRICULUM",
    "BABYAI_GOTO_CURRICULUM",
    "PRESETS",
    "Condition",
    "check_schedule",
    "condition_of",
    "stages_of",
]

BABYAI_GOTO_CURRICULUM = (
    Stage(env_id="BabyAI-GoToRedBallNoDists-v0", steps=200_000),
    Stage(env_id="BabyAI-GoToRedBall-v0", steps=200_000),
    Stage(env_id="BabyAI-GoToObj-v0", steps=200_000),
    Stage(env_id="BabyAI-GoToLocal-v0"),
)
BABYAI_DOORKEY_CURRICULUM = (
    Stage(env_id="MiniGrid-DoorKey-5x5-v0", condition="episode_return>=0.8|steps>=300000"),
    Stage(env_id="MiniGrid-DoorKey-6x6-v0", condition="episode_return>=0.8|steps>=300000"),
    Stage(env_id="MiniGrid-DoorKey-8x8-v0", condition="episode_return>=0.8|steps>=500000"),
    Stage(env_id="MiniGrid-DoorKey-16x16-v0"),
)
PRESETS = {
    "BABYAI_GOTO_CURRICULUM": BABYAI_GOTO_CURRICULUM,
    "BABYAI_DOORKEY_CURRICULUM": BABYAI_DOORKEY_CURRICULUM,
}

WINDOW = 100
"""Number of last episodes of a stage over which `episode_return` is the mean."""
_ENOUGH = 20
"""Minimum number of episodes for that mean, so that one lucky episode does not end a stage."""
_DEFAULT = "steps>=100000"
_METRICS = ("steps", "episodes", "episode_return")
_CLAUSE = re.compile(r"\s*(\w+)\s*>=\s*([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*")
_FEWEST = 2


@dataclass(frozen=True)
class Condition:
    """Holds if any clause does; a clause is a metric and its minimum."""

    clauses: tuple[tuple[str, float], ...]

    @classmethod
    def parse(cls, text: str) -> "Condition":
        """Parse a text such as `steps>=300|episode_return>=0.9`; ValueError lists what is valid."""
        clauses = []
        for part in text.split("|"):
            found = _CLAUSE.fullmatch(part)
            if found is None or found[1] not in _METRICS:
                guess = near(found[1], _METRICS) if found else ""
                allowed = "steps>=N, episodes>=N, episode_return>=X; several are joined by |"
                raise ValueError(f"{part.strip()!r} is none of {allowed}{guess}")
            least = float(found[2])
            if found[1] != "episode_return" and (least < 1 or least != int(least)):
                raise ValueError(f"{part.strip()!r}: give a whole number of 1 or more")
            clauses.append((found[1], least))
        return cls(tuple(clauses))

    def holds(self, steps: int, episodes: int, returns: Sequence[float]) -> bool:
        """Whether a stage with these figures ends."""
        return any(
            steps >= least
            if metric == "steps"
            else episodes >= least
            if metric == "episodes"
            else len(returns) >= _ENOUGH and fmean(returns) >= least
            for metric, least in self.clauses
        )


def stages_of(schedule: Sequence[Stage] | str) -> list[Stage]:
    """Return the stages of a schedule, which may be the name of a preset."""
    if not isinstance(schedule, str):
        return list(schedule)
    if schedule not in PRESETS:
        raise ValueError(f"no such preset{near(schedule, list(PRESETS))}: there are {', '.join(PRESETS)}")
    return list(PRESETS[schedule])


def condition_of(stage: Stage) -> Condition:
    """Return the condition that ends a stage; the default is 100,000 steps."""
    texts = [] if stage.steps is None else [f"steps>={stage.steps}"]
    texts += [] if stage.condition is None else [stage.condition]
    return Condition.parse("|".join(texts) or _DEFAULT)


def check_schedule(schedule: Sequence[Stage] | str) -> None:
    """Raise ValueError for an invalid schedule, naming stage and field."""
    stages = stages_of(schedule)
    if len(stages) < _FEWEST:
        raise ValueError(f"a curriculum has {_FEWEST} stages or more; for one environment give env_id alone")
    for number, stage in enumerate(stages):
        try:
            condition_of(stage)
        except ValueError as error:
            raise ValueError(f"curriculum_schedule.{number}.condition: {error}") from error
