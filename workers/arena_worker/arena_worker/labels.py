"""The names of discrete actions, for people, for passive agents and for language models."""

from typing import Any

from mosaic_worker.meanings import action_meanings

__all__ = ["labels_of"]

_LUNAR = ["idle", "fire left engine", "fire main engine", "fire right engine"]
_MPE = ["no_action", "left", "right", "down", "up"]
_KNIGHTS = ["forward", "backward", "turn left", "turn right", "attack", "noop"]
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
}
"""By how the name of an environment begins; only where the environment does not say it itself."""


def labels_of(env_id: str, env: Any, space: Any) -> list[str] | None:
    """Return a name for each action of a discrete space; None if there are none or they do not fit."""
    count = getattr(space, "n", None)
    if count is None:
        return None
    name = env_id.rpartition(":")[2].replace("/", ".").rpartition(".")[2]
    known = next((labels for start, labels in _KNOWN.items() if name.startswith(start)), None)
    found = action_meanings(env) or known
    return found if found is not None and len(found) == count else None
