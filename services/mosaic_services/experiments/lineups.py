"""Lineups: which operator plays which agent, written out from `each`, `pairs` or a list."""

from __future__ import annotations

import re
from itertools import combinations
from typing import TYPE_CHECKING

from mosaic_bus.wording import did_you_mean
from mosaic_services.experiments.errors import ExperimentError
from mosaic_services.experiments.model import Lineup
from mosaic_services.experiments.tasks import players_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mosaic_services.experiments.model import Experiment

__all__ = ["EVERY_AGENT", "expand_lineups"]

EVERY_AGENT = "*"
_PAIR = 2
# A board keeps its files in a folder of this name.
_NAME = re.compile(r"[\w@+(-][\w .,:;@+=()&%-]{0,63}")


def expand_lineups(experiment: Experiment) -> tuple[Lineup, ...]:
    """Write out the lineups of an experiment; raise ExperimentError if an operator or the players are unknown."""
    asked = experiment.lineups or _usual(experiment)
    if isinstance(asked, tuple):
        made = [_explicit(experiment, number, dict(each)) for number, each in enumerate(asked)]
    elif asked == "each":
        made = [Lineup(name=name, agents={EVERY_AGENT: name}) for name in experiment.operators]
    else:
        made = _pairs(experiment)
    unique = {each.name: each for each in made}
    if len(unique) < len(made):
        twice = next(each.name for each in made if sum(other.name == each.name for other in made) > 1)
        raise ExperimentError(f"two lineups are called {twice!r}", "give each a name of its own", ("lineups",))
    return tuple(unique.values())


def _usual(experiment: Experiment) -> str:
    """Pairs in a two-player game, else each operator alone."""
    return "pairs" if _players(experiment) is not None and len(experiment.operators) >= _PAIR else "each"


def _players(experiment: Experiment) -> tuple[str, ...] | None:
    given = experiment.environment.agents
    return given if len(given) == _PAIR else None if given else players_of(experiment.environment.id)


def _pairs(experiment: Experiment) -> list[Lineup]:
    players = _players(experiment)
    if players is None:
        raise ExperimentError(
            f"lineups: pairs needs the two players of {experiment.environment.id}, which are not known",
            "name them: environment: {agents: [player_0, player_1]}, or list the lineups",
            ("lineups",),
        )
    if len(experiment.operators) < _PAIR:
        raise ExperimentError("lineups: pairs needs two operators", "add one, or use: lineups: each", ("lineups",))
    made = []
    for pair in combinations(experiment.operators, _PAIR):
        sides = [pair, pair[::-1]] if experiment.swap_sides else [pair]
        made += [Lineup(name="-vs-".join(side), agents=dict(zip(players, side, strict=True))) for side in sides]
    return made


def _explicit(experiment: Experiment, number: int, asked: dict[str, str]) -> Lineup:
    field = ("lineups", number)
    name = asked.pop("name", "")
    if name and not _NAME.fullmatch(name):
        said = f"lineups.{number}.name: {name!r} is no name of a lineup"
        hint = "use up to 64 letters, digits, spaces and . , : ; @ + = ( ) & % _ -, with no dot or space in front"
        raise ExperimentError(said, hint, (*field, "name"))
    agents: dict[str, str] = {}
    for key, operator in asked.items():
        if operator not in experiment.operators:
            known = experiment.operators
            hint = did_you_mean(operator, known) or f"the operators are: {', '.join(known)}"
            raise ExperimentError(f"lineups.{number}.{key}: no operator is called {operator!r}", hint, (*field, key))
        for agent in experiment.groups.get(key, (key,)):
            if agent in agents:
                raise ExperimentError(f"lineups.{number}: agent {agent!r} is given twice", "", field)
            agents[agent] = operator
    if not agents:
        raise ExperimentError(f"lineups.{number}: no agent has an operator", "for example: {player_1: ppo}", field)
    players = experiment.environment.agents or players_of(experiment.environment.id) or ()
    _require_every_player(players, number, agents)
    name = name or "-vs-".join(dict.fromkeys(agents.values()))
    return Lineup(name=name, agents=_in_turn(agents, players))


def _in_turn(agents: dict[str, str], players: Sequence[str]) -> dict[str, str]:
    """Put agents in the order in which they move, if that is known: a report tells by it who moved first."""
    others = [each for each in players if each not in agents]
    places = {agent: place for place, agent in enumerate(players)}
    places[EVERY_AGENT] = places[others[0]] if others else len(players)
    return dict(sorted(agents.items(), key=lambda each: places.get(each[0], len(players))))


def _require_every_player(players: Sequence[str], number: int, agents: dict[str, str]) -> None:
    """Name a player that nobody plays, if the players are known; otherwise the arena finds it out."""
    if not players or EVERY_AGENT in agents:
        return
    if unknown := [each for each in agents if each not in players]:
        hint = did_you_mean(unknown[0], players) or f"the agents are: {', '.join(players)}"
        raise ExperimentError(f"lineups.{number}: no agent is called {unknown[0]!r}", hint, ("lineups", number))
    if missing := [each for each in players if each not in agents]:
        said = f"lineups.{number}: agent {missing[0]!r} has no operator"
        raise ExperimentError(said, f"add {missing[0]}: OPERATOR", ("lineups", number))
