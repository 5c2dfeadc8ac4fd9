"""What an environment's id tells without making it: its family, its first agent, the players of two-player games."""

from __future__ import annotations

import re
from typing import Literal

__all__ = ["Family", "family_of", "first_agent_of", "players_of"]

Family = Literal["gymnasium", "aec", "parallel"]

# Two-player games of PettingZoo, whose players move in turn, and what each calls them.
_PLAYERS = {
    "tictactoe": ("player_1", "player_2"),
    "connect_four": ("player_0", "player_1"),
    "chess": ("player_0", "player_1"),
    "rps": ("player_0", "player_1"),
    "gin_rummy": ("player_0", "player_1"),
    "texas_holdem": ("player_0", "player_1"),
    "texas_holdem_no_limit": ("player_0", "player_1"),
    "go": ("black_0", "white_0"),
}
# First agents of the other environments of PettingZoo.
_FIRST = {
    "cooperative_pong": "paddle_0",
    "knights_archers_zombies": "archer_0",
    "multiwalker": "walker_0",
    "pistonball": "piston_0",
    "pursuit": "pursuer_0",
    "simple": "agent_0",
    "simple_adversary": "adversary_0",
    "simple_crypto": "eve_0",
    "simple_push": "adversary_0",
    "simple_reference": "agent_0",
    "simple_speaker_listener": "speaker_0",
    "simple_spread": "agent_0",
    "simple_tag": "adversary_0",
    "simple_world_comm": "leadadversary_0",
    "waterworld": "pursuer_0",
}
# Environments of PettingZoo end in _v3; those of Gymnasium in -v3.
_PETTINGZOO = re.compile(r"(?:.*[./])?(?P<name>[a-z][a-z0-9_]*)_v\d+")


def _name(env_id: str) -> str | None:
    found = _PETTINGZOO.fullmatch(env_id)
    return found["name"] if found else None


def family_of(env_id: str) -> Family:
    """The interface of an environment: `gymnasium` (one agent), `aec` (in turn) or `parallel` (all at once)."""
    name = _name(env_id)
    if name is None:
        return "gymnasium"
    return "aec" if name in _PLAYERS else "parallel"


def players_of(env_id: str) -> tuple[str, str] | None:
    """The two players of a known game, in the order in which they move; None for any other environment."""
    return _PLAYERS.get(_name(env_id) or "")


def first_agent_of(env_id: str) -> str | None:
    """The first agent of a known environment with several; None for any other."""
    name = _name(env_id) or ""
    players = _PLAYERS.get(name)
    return players[0] if players is not None else _FIRST.get(name)
