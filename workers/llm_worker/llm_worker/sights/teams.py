"""The particle environments (MPE) in words: where things are, seen from the agent."""

from typing import Any

import numpy as np

from llm_worker.sights.base import Describer, number

__all__ = ["ParticleDescriber"]

_RULES = {
    "simple": "One agent on a plane wants to come close to the landmark.",
    "simple_spread": (
        "Agents on a plane have to cover all landmarks: each landmark needs an agent close to it. They lose points "
        "when they collide."
    ),
    "simple_tag": "Adversaries chase good agents on a plane with obstacles, and win points by touching them.",
    "simple_adversary": (
        "Good agents want to be close to the goal, one of the landmarks. The adversary wants that, too, but does not "
        "know which landmark is the goal."
    ),
    "simple_push": "The good agent wants to come close to its goal, and the adversary wants to keep it away.",
}


class ParticleDescriber(Describer):
    """Knows the layout of the common ones, and writes plain numbers for the others."""

    @property
    def _kind(self) -> str:
        return self.scene.name.rsplit("_v", 1)[0]

    @property
    def rules(self) -> str:
        """What the game is about, and how the actions push."""
        about = _RULES.get(self._kind) or super().rules
        moves = "Positions are (x, y): x grows to the right, y grows upwards. An action pushes you in that direction."
        return f"{about} {moves}" if self._kind in _RULES else about

    def text(self, observation: Any) -> str:
        """Say where things are."""
        numbers = np.asarray(observation, dtype=float).ravel().tolist()
        others = [agent for agent in self.scene.agents if agent != self.scene.agent]
        layout = _layout(self._kind, self.scene.agent, len(numbers), others)
        if layout is None:
            return super().text(observation)
        lines, place = [], 0
        for what, count in layout:
            for index in range(count):
                x, y = numbers[place : place + 2]
                place += 2
                name = others[index] if what == "agent" else f"{what} {index + 1}" if count > 1 else what
                lines.append(_line(what, name, x, y))
        return "\n".join(lines)


def _layout(kind: str, agent: str, size: int, others: list[str]) -> list[tuple[str, int]] | None:
    """Return what the pairs of numbers are, in order; None if that is not known."""
    count = len(others)
    if kind == "simple":
        return [("velocity", 1), ("landmark", 1)]
    if kind == "simple_spread":  # what the others say comes last, and they say nothing
        return [("velocity", 1), ("position", 1), ("landmark", (size - 4 - 4 * count) // 2), ("agent", count)]
    if kind == "simple_tag":  # the velocities of the good ones among the others come last
        good = sum(not each.startswith("adversary") for each in others)
        obstacles = (size - 4 - 2 * count - 2 * good) // 2
        return [("velocity", 1), ("position", 1), ("obstacle", obstacles), ("agent", count)]
    if kind == "simple_adversary":
        goal = [] if agent.startswith("adversary") else [("goal", 1)]
        return [*goal, ("landmark", size // 2 - len(goal) - count), ("agent", count)]
    return None


def _line(what: str, name: str, x: float, y: float) -> str:
    if what == "position":
        return f"You are at ({number(x)}, {number(y)})."
    if what == "velocity":
        return f"Your velocity is ({number(x)}, {number(y)})."
    side = f"{number(abs(x))} to the {'right' if x > 0 else 'left'}"
    level = f"{number(abs(y))} {'up' if y > 0 else 'down'}"
    return f"{name} is {side} and {level} of you."
