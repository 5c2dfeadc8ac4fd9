"""The names, keys and places of discrete actions, for people, for passive agents and for language models."""

from typing import Any

from mosaic_worker.board_moves import chess_move, go_move
from mosaic_worker.meanings import action_meanings, find_noop

__all__ = ["keys_of", "labels_of", "layout_of"]

_LUNAR = ["idle", "fire left engine", "fire main engine", "fire right engine"]
_MPE = ["no_action", "left", "right", "down", "up"]
_KNIGHTS = ["forward", "backward", "turn left", "turn right", "attack", "noop"]
_POKER = ["call", "raise", "fold", "check"]
_CARDS = [f"{rank}{suit}" for suit in "SHDC" for rank in "A23456789TJQK"]
_KNOWN = {
    "CartPole": ["left", "right"],
    "MountainCar-": ["left", "idle", "right"],
    "Acrobot": ["torque -1", "idle", "torque +1"],
    "LunarLander": _LUNAR,
    "FrozenLake": ["left", "down", "right", "up"],
    "CliffWalking": ["up", "right", "down", "left"],
    "Taxi": ["south", "north", "east", "west", "pickup", "drop off"],
    "Blackjack": ["stick", "hit"],
    "simple_": _MPE,
    "pursuit": ["left", "right", "up", "down", "stay"],
    "rps": ["rock", "paper", "scissors"],
    "knights_archers_zombies": _KNIGHTS,
    "cooperative_pong": ["noop", "up", "down"],
    "pistonball": ["down", "stay", "up"],
    "tictactoe": [f"column {cell // 3 + 1} row {cell % 3 + 1}" for cell in range(9)],
    "connect_four": [f"column {column + 1}" for column in range(7)],
    "leduc_holdem": _POKER,
    "texas_holdem_v": _POKER,
    "texas_holdem_no_limit": ["fold", "check or call", "raise half pot", "raise full pot", "all in"],
    "gin_rummy": [
        "score player 0",
        "score player 1",
        "draw",
        "pick up",
        "declare dead hand",
        "gin",
        *(f"discard {card}" for card in _CARDS),
        *(f"knock {card}" for card in _CARDS),
    ],
}
"""By how the name of an environment begins; only where the environment does not say it itself."""

_ARROWS = {
    "left": "left",
    "turn left": "left",
    "west": "left",
    "right": "right",
    "turn right": "right",
    "east": "right",
    "up": "up",
    "north": "up",
    "forward": "up",
    "down": "down",
    "south": "down",
    "backward": "down",
}
_DIGITS = range(10)
_TAKEN = "qjk?"
"""Keys that a terminal uses itself."""
_LAYOUTS: dict[str, dict[str, Any]] = {
    "tictactoe": {"rows": 3, "columns": 3, "cells": {str(cell): [cell % 3, cell // 3] for cell in range(9)}},
    "connect_four": {"rows": 6, "columns": 7, "cells": {str(column): [0, column] for column in range(7)}},
}
"""Boards on which an action is a place: rows from the top, columns from the left."""


def layout_of(env_id: str) -> dict[str, Any] | None:
    """Return where each action lies on the board, [row, column]; None if it has none. Connect four drops from row 0."""
    name = env_id.replace("/", ".").rpartition(".")[2]
    return next((layout for start, layout in _LAYOUTS.items() if name.startswith(start)), None)


def keys_of(env_id: str, labels: list[str] | None, count: int) -> list[str | None]:
    """Return a key for each action: arrows for directions, a letter of the name, a digit, or None.

    On a board the digits count the places in reading order.
    """
    layout = layout_of(env_id)
    if layout is not None:
        places = sorted(layout["cells"].items(), key=lambda each: each[1])
        digits = {int(action): str(number) for number, (action, _) in enumerate(places, start=1)}
        return [digits.get(action) for action in range(count)]
    if labels is None:
        return [str(action) if action in _DIGITS else None for action in range(count)]
    noop, found = find_noop(labels), list[str | None]()
    for action, label in enumerate(labels):
        word = label.lower().replace("_", " ")
        wanted = [_ARROWS[word]] if word in _ARROWS else []
        wanted += ["space"] if action == noop else []
        wanted += [letter for letter in word if letter.isalpha() and letter not in _TAKEN]
        wanted += [str(action)] if action in _DIGITS else []
        found.append(next((key for key in wanted if key not in found), None))
    return found


def labels_of(env_id: str, env: Any, space: Any, agent: str) -> list[str] | None:
    """Return a name for each action of an agent's discrete space; None if there are none or they do not fit."""
    count = getattr(space, "n", None)
    if count is None:
        return None
    name = env_id.rpartition(":")[2].replace("/", ".").rpartition(".")[2]
    if name.startswith("chess_v"):
        return [chess_move(action, is_mirrored=agent == "player_1") for action in range(count)]
    if name.startswith("go_v"):
        return [go_move(action, count) for action in range(count)]
    known = next((labels for start, labels in _KNOWN.items() if name.startswith(start)), None)
    found = action_meanings(env) or known
    return found if found is not None and len(found) == count else None
