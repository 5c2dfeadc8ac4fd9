"""Toy text and classic control in words."""

from typing import Any

import numpy as np

from llm_worker.sights.base import Describer, number

__all__ = ["NumbersDescriber", "StateDescriber", "numbers_of", "state_of"]

_NUMBERS = {
    "CartPole": (
        (
            "A pole stands on a cart. Push the cart to the left or to the right such that the pole does not fall: keep "
            "its angle between -0.21 and 0.21 radians, and the position between -2.4 and 2.4."
        ),
        (
            "cart position",
            "cart velocity",
            "pole angle in radians (positive: leaning to the right)",
            "pole angular velocity",
        ),
    ),
    "MountainCar": (
        (
            "A car in a valley has to reach the flag on the right hill, at position 0.5. Its engine is too weak to "
            "drive up directly: swing back and forth to gain speed."
        ),
        ("position (the lowest point of the valley is at -0.52)", "velocity"),
    ),
    "Acrobot": (
        (
            "Two links hang from a fixed point. Apply torque at the joint between them to swing the free end above the "
            "line that is one link above the fixed point."
        ),
        (
            *("cosine of the first angle", "sine of the first angle", "cosine of the second angle"),
            *("sine of the second angle", "angular velocity of the first link", "angular velocity of the second link"),
        ),
    ),
    "Pendulum": (
        "Swing the pendulum up and keep it upright, with little torque. Upright, the cosine is 1 and the sine is 0.",
        ("cosine of the angle", "sine of the angle", "angular velocity"),
    ),
    "LunarLander": (
        "Land between the flags, at position (0, 0), slowly and upright, with little fuel.",
        (
            *("horizontal position", "vertical position", "horizontal velocity", "vertical velocity"),
            *("angle", "angular velocity", "left leg touches the ground", "right leg touches the ground"),
        ),
    ),
}
_TAXI_PLACES = (
    "red (row 1, column 1)",
    "green (row 1, column 5)",
    "yellow (row 5, column 1)",
    "blue (row 5, column 4)",
)
_CLIFF = (*("............",) * 3, "SCCCCCCCCCCG")
_LEGENDS = {
    "FrozenLake": "S is the start, F is ice, H is a hole, G is the goal",
    "CliffWalking": "S is the start, C is the cliff, G is the goal",
    "Taxi": "R, G, Y and B are the places, | is a wall between two cells, and : is none",
}
_RULES = {
    "FrozenLake": (
        "You cross a frozen lake on a square grid, from the upper left corner to the goal in the lower right corner. "
        "Whoever steps into a hole falls in and loses. The ice may be slippery: you may slide in another direction."
    ),
    "CliffWalking": (
        "You walk on a grid of 4 rows and 12 columns, from row 4, column 1 to the goal in row 4, column 12. Between "
        "them, row 4 is a cliff: stepping there costs 100 points and takes you back to the start."
    ),
    "Taxi": (
        "You drive a taxi on a grid of 5 rows and 5 columns. Drive to the passenger, pick them up, drive to their "
        "destination, and drop them off. Some cells have walls between them. A wrong pickup or drop off costs 10."
    ),
    "Blackjack": (
        "Blackjack: come as close to 21 as you can without going over it, and closer than the dealer. Hit takes "
        "another card, stick takes none."
    ),
}


class NumbersDescriber(Describer):
    """Names each number of a vector."""

    @property
    def rules(self) -> str:
        """What the goal is."""
        return _NUMBERS[numbers_of(self.scene.name) or ""][0]

    def text(self, observation: Any) -> str:
        """List the numbers by name."""
        names = _NUMBERS[numbers_of(self.scene.name) or ""][1]
        values = np.asarray(observation, dtype=float).ravel().tolist()
        if len(values) != len(names):
            return super().text(observation)
        return "\n".join(f"- {name}: {number(value)}" for name, value in zip(names, values, strict=True))


class StateDescriber(Describer):
    """Says what the number of a state means."""

    @property
    def rules(self) -> str:
        """What the game is about, and its map."""
        kind = state_of(self.scene.name) or ""
        rows = _CLIFF if kind == "CliffWalking" else self.scene.map
        if not rows or kind not in _LEGENDS:
            return _RULES[kind]
        return "\n".join([_RULES[kind], f"The map, row by row ({_LEGENDS[kind]}):", *rows])

    def text(self, observation: Any) -> str:
        """Say where the agent is."""
        kind = state_of(self.scene.name)
        if kind == "Blackjack":
            total, dealer, ace = (int(part) for part in observation)
            return f"Your cards count {total}{' with a usable ace' if ace else ''}. The dealer shows {dealer}."
        state = int(np.asarray(observation))
        if kind == "Taxi":
            return _taxi(state)
        columns = 12 if kind == "CliffWalking" else round(int(self.scene.observation_space.get("n", 16)) ** 0.5)
        return f"You are in row {state // columns + 1}, column {state % columns + 1}."


def numbers_of(name: str) -> str | None:
    """Return the known environment of numbers whose name this begins with."""
    return next((known for known in _NUMBERS if name.startswith(known)), None)


def state_of(name: str) -> str | None:
    """Return the known environment of states whose name this begins with."""
    return next((known for known in _RULES if name.startswith(known)), None)


def _taxi(state: int) -> str:
    state, goal = divmod(state, 4)
    state, passenger = divmod(state, 5)
    row, column = divmod(state, 5)
    inside = passenger == len(_TAXI_PLACES)
    where = "in your taxi" if inside else f"at {_TAXI_PLACES[passenger]}"
    return (
        f"Your taxi is in row {row + 1}, column {column + 1}. The passenger is {where}. "
        f"The destination is {_TAXI_PLACES[goal]}."
    )
