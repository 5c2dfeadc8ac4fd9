"""The particle environments (MPE) in words: where things are, seen from the agent."""

from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from llm_worker.sights.base import Describer, Scene, number

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
    "simple_push": (
        "The good agent wants to come close to its goal, one of the two landmarks. The adversary wants to be close to "
        "it and to push the good agent away, but does not know which landmark is the goal."
    ),
    "simple_reference": (
        "Two agents share three landmarks: landmark 1 is red, landmark 2 is green, landmark 3 is blue. Each wants to "
        "come close to its own goal, one of the landmarks, but only the other agent knows which one. With each action "
        "you say one of ten words and move."
    ),
    "simple_speaker_listener": (
        "The listener has to come close to its goal, one of three landmarks: landmark 1 is red, landmark 2 is green, "
        "landmark 3 is blue. Only the speaker knows which one is the goal; it cannot move, and says one of three words."
    ),
    "simple_crypto": (
        "Alice sends Bob a secret message, word 0 or 1, and everybody hears what she says. Alice and Bob share a key, "
        "word 0 or 1, and want Bob to say the message. Eve, who does not know the key, wants to say it, too."
    ),
    "simple_world_comm": (
        "Adversaries chase good agents on a plane with an obstacle, food and two forests, and win points by touching "
        "them. Good agents win points close to food. In a forest one is hidden from those outside. The lead adversary "
        "sees everybody, and says one of four words that the other adversaries hear."
    ),
}
_COLORS = ("red", "green", "blue")
_MOVES = ("stay", "left", "right", "down", "up")


class Part(NamedTuple):
    """Some numbers of an observation: what they say about whom."""

    kind: str
    name: str = ""
    width: int = 2


class ParticleDescriber(Describer):
    """Knows what each number is, and writes plain numbers if there are more or fewer than it knows."""

    def __init__(self, scene: Scene) -> None:
        """Name the actions of those who speak."""
        super().__init__(scene)
        count = int(scene.action_space.get("n", 0))
        if scene.meanings is None and self._kind in _RULES and count:
            if count % len(_MOVES):
                self.names = [f"say {word}" for word in range(count)]
            elif count > len(_MOVES):  # a word and a move: the move counts on first
                words = range(count // len(_MOVES))
                self.names = [
                    f"say {word} and {'stay' if m == 'stay' else 'go ' + m}" for word in words for m in _MOVES
                ]

    @property
    def _kind(self) -> str:
        return self.scene.name.rsplit("_v", 1)[0]

    @property
    def rules(self) -> str:
        """What the game is about, and how the actions push."""
        about = _RULES.get(self._kind)
        if about is None:
            return super().rules
        if self._kind == "simple_crypto":
            return about
        return f"{about} Positions are (x, y): x grows to the right, y grows upwards. Moves push you in that direction."

    def text(self, observation: Any) -> str:
        """Say where things are."""
        numbers = np.asarray(observation, dtype=float).ravel().tolist()
        others = [agent for agent in self.scene.agents if agent != self.scene.agent]
        parts = _parts(self._kind, self.scene.agent, len(numbers), others)
        ends = list(accumulate(part.width for part in parts))
        if not parts or ends[-1] != len(numbers):
            return super().text(observation)
        lines = [_line(part, numbers[end - part.width : end]) for part, end in zip(parts, ends, strict=True)]
        return "\n".join(line for line in lines if line)


def _parts(kind: str, agent: str, size: int, others: list[str]) -> list[Part]:
    """Return what the numbers are, in order; nothing if that is not known."""
    mine, near = [Part("velocity"), Part("position")], [Part("place", other) for other in others]
    good = [other for other in others if "adversary" not in other]
    if kind == "simple":
        return [Part("velocity"), Part("place", "landmark")]
    if kind == "simple_spread":  # what the others say comes last, and they say nothing
        words = [Part("", width=2 * len(others))]
        return [*mine, *_places("landmark", (size - 4 - 4 * len(others)) // 2), *near, *words]
    if kind == "simple_tag":  # the velocities of the good ones among the others come last
        obstacles = (size - 4 - 2 * len(others) - 2 * len(good)) // 2
        return [*mine, *_places("obstacle", obstacles), *near, *(Part("moves", other) for other in good)]
    if kind == "simple_adversary":
        goal = [] if agent.startswith("adversary") else [Part("place", "goal")]
        return [*goal, *_places("landmark", size // 2 - len(goal) - len(others)), *near]
    if kind == "simple_push":
        marks = _places("landmark", 2)
        if agent.startswith("adversary"):
            return [Part("velocity"), *marks, *near]
        colors = [Part("color", mark.name, 3) for mark in marks]
        return [Part("velocity"), Part("place", "your goal"), Part("color", "your goal", 3), *marks, *colors, *near]
    if kind == "simple_reference":
        goal = [Part("color", f"the goal of {others[0]}", 3)]
        return [Part("velocity"), *_places("landmark", 3), *goal, Part("word", f"{others[0]} said", 10)]
    if kind == "simple_speaker_listener":
        if agent.startswith("speaker"):
            return [Part("color", "the goal of the listener", 3)]
        return [Part("velocity"), *_places("landmark", 3), Part("word", "the speaker said", 3)]
    if kind == "simple_crypto":
        heard, key = Part("word", "Alice said", 4), Part("word", "the key is", 4)
        first = {"alice": [Part("word", "the message is", 4), key], "bob": [key, heard]}
        return first.get(agent.partition("_")[0], [heard])
    if kind == "simple_world_comm":
        things = [Part("place", "obstacle"), *_places("food", 2), *_places("forest", 2)]
        inside = [Part("inside", f"forest {number}", 1) for number in (1, 2)]
        moves = [Part("moves", other) for other in good]
        seen = [*mine, *things, *(Part("maybe", other) for other in others)]
        if "adversary" not in agent:
            return [*seen, *inside, *moves]
        return [*seen, *moves, *inside, Part("word", "the lead adversary said", 4)]
    return []


def _places(name: str, count: int) -> list[Part]:
    return [Part("place", f"{name} {number}" if count > 1 else name) for number in range(1, count + 1)]


def _line(part: Part, values: list[float]) -> str:
    if part.kind == "":
        return ""
    if part.kind == "word":
        word = f"word {values.index(max(values))}" if any(values) else "nothing yet"
        return f"{part.name[0].upper()}{part.name[1:]} {word}."
    if part.kind == "color":
        return f"The color of {part.name} is {_COLORS[values.index(max(values))]}."
    if part.kind == "inside":
        return f"You are {'in' if values[0] > 0 else 'not in'} {part.name}."
    x, y = values
    if part.kind == "maybe" and not x and not y:
        return f"{part.name} is hidden."
    if part.kind == "position":
        return f"You are at ({number(x)}, {number(y)})."
    if part.kind == "velocity":
        return f"Your velocity is ({number(x)}, {number(y)})."
    if part.kind == "moves":
        return f"The velocity of {part.name} is ({number(x)}, {number(y)})."
    side = f"{number(abs(x))} to the {'right' if x > 0 else 'left'}"
    level = f"{number(abs(y))} {'up' if y > 0 else 'down'}"
    return f"{part.name} is {side} and {level} of you."
