"""Who plays against whom: without sides nobody can win, and an episode is scored by its returns."""

import re
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

__all__ = ["Sides"]

_GAMES = (
    "tictactoe_v",
    "connect_four_v",
    "chess_v",
    "go_v",
    "rps_v",
    "gin_rummy_v",
    "leduc_holdem_v",
    "texas_holdem_v",
    "texas_holdem_no_limit_v",
)
"""Each player against every other, by how the names of environments begin."""
_TEAMS = ("simple_adversary_v", "simple_crypto_v", "simple_push_v", "simple_tag_v", "simple_world_comm_v")
"""Adversaries against the others."""
_ADVERSARY = re.compile(r"(lead)?adversary_\d+|eve_\d+")


class Sides:
    """The sides of a game, by agent."""

    def __init__(self, env_id: str, agents: Sequence[str], *, competitive: bool | None) -> None:
        """Know the sides of an environment; `competitive` says whether agents play against each other."""
        name = env_id.replace("/", ".").rpartition(".")[2]
        self._side_of: dict[str, str] = {}
        if competitive is False or len(agents) == 1:
            return
        if name.startswith(_TEAMS):
            self._side_of = {agent: "adversaries" if _ADVERSARY.fullmatch(agent) else "others" for agent in agents}
        elif competitive or name.startswith(_GAMES):
            self._side_of = {agent: agent for agent in agents}

    def winners(self, returns: Mapping[str, float], losers: AbstractSet[str]) -> list[str] | None:
        """Return who won: the sides that did not forfeit, or the one that got most; empty if all got the same.

        The return of a side is the mean of its agents'. None if nobody can win.
        """
        sides = dict.fromkeys(self._side_of.values(), 0.0)
        if not sides:
            return None
        if losers:
            lost = {self._side_of[agent] for agent in losers}
            return [agent for agent, side in self._side_of.items() if side not in lost]
        for side in sides:
            members = [agent for agent in self._side_of if self._side_of[agent] == side]
            sides[side] = sum(returns[agent] for agent in members) / len(members)
        most = max(sides.values())
        best = [agent for agent, side in self._side_of.items() if sides[side] == most]
        return [] if len(best) == len(self._side_of) else best
