"""MiniGrid and BabyAI in words: what lies where, counted in steps from the agent, as in BALROG's benchmark."""

from typing import Any

import numpy as np

from llm_worker.sights.base import Describer, Scene

__all__ = ["GridDescriber"]

_OBJECTS = {2: "wall", 4: "door", 5: "key", 6: "ball", 7: "box", 8: "goal", 9: "lava"}
_COLORS = ("red", "green", "blue", "purple", "yellow", "grey")
_DOORS = ("open", "closed", "locked")
_WALL, _DOOR, _COLORED = 2, 4, {4, 5, 6, 7}
_NAMES = {
    "left": "turn left",
    "right": "turn right",
    "forward": "go forward",
    "pickup": "pick up",
    "drop": "drop",
    "toggle": "toggle",
    "done": "done",
}
_RULES = """You move through rooms on a grid. You see only what is in front of you and to your sides.
Your actions mean:
- turn left: turn to the left, without moving
- turn right: turn to the right, without moving
- go forward: take one step forward, if nothing stands there
- pick up: pick up the object one step in front of you
- drop: drop the object that you carry one step in front of you
- toggle: open or close the door or box one step in front of you; a locked door needs its key
- done: say that you are done
To reach an object, turn until it is straight ahead and go forward until it is one step in front of you."""


class GridDescriber(Describer):
    """Sees the mission and the part of the grid before the agent."""

    @property
    def rules(self) -> str:
        """What the actions do."""
        return _RULES

    def __init__(self, scene: Scene) -> None:
        """Name the actions as BALROG does."""
        super().__init__(scene)
        if scene.meanings is not None:
            self.names = [_NAMES.get(name, name) for name in scene.meanings]

    def text(self, observation: Any) -> str:
        """Name the mission, what is seen, and what is carried."""
        view = np.asarray(observation["image"])
        width, depth = view.shape[0], view.shape[1]
        middle, near = width // 2, depth - 1
        lines = [f"Your mission: {observation['mission']}." if observation.get("mission") else ""]
        seen = _things(view, middle, near) + _walls(view, middle, near)
        lines.append("You see:" if seen else "You see nothing but floor.")
        lines += [f"- {each}" for each in seen]
        carried = int(view[middle, near, 0])
        if carried in _COLORED:
            lines.append(f"You carry a {_COLORS[int(view[middle, near, 1])]} {_OBJECTS[carried]}.")
        return "\n".join(line for line in lines if line)


def _things(view: Any, middle: int, near: int) -> list[str]:
    """List objects, the nearest first."""
    found = []
    for x in range(view.shape[0]):
        for y in range(view.shape[1]):
            kind = int(view[x, y, 0])
            if kind in _OBJECTS and kind != _WALL and (x, y) != (middle, near):
                found.append((near - y + abs(x - middle), y, x, _thing(view[x, y])))
    return [f"{name} {_place(x - middle, near - y)}" for _, y, x, name in sorted(found)]


def _thing(cell: Any) -> str:
    kind, color, state = (int(part) for part in cell)
    words = [_DOORS[state]] if kind == _DOOR and state < len(_DOORS) else []
    if kind in _COLORED and color < len(_COLORS):
        words.append(_COLORS[color])
    words.append(_OBJECTS[kind])
    article = "an" if words[0][0] in "aeiou" else "a"
    return " ".join([article, *words])


def _walls(view: Any, middle: int, near: int) -> list[str]:
    """Name the nearest wall straight ahead, to the left and to the right."""
    ways = {
        "forward": [(middle, near - step) for step in range(1, near + 1)],
        "to the left": [(middle - step, near) for step in range(1, middle + 1)],
        "to the right": [(middle + step, near) for step in range(1, view.shape[0] - middle)],
    }
    found = []
    for way, cells in ways.items():
        for distance, (x, y) in enumerate(cells, start=1):
            if int(view[x, y, 0]) == _WALL:
                found.append(f"a wall {_steps(distance)} {way}")
                break
    return found


def _place(right: int, forward: int) -> str:
    side = f"{_steps(abs(right))} to the {'right' if right > 0 else 'left'}" if right else ""
    ahead = f"{_steps(forward)} forward" if forward else ""
    return " and ".join(part for part in (ahead, side) if part)


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"
