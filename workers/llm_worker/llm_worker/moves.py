"""The actions of an agent in words: which are legal, how an answer is asked for, and how it is read, strictly."""

import json
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from llm_worker.problems import InvalidAnswerError, RefusedError

__all__ = ["Choice", "Moves"]

_EDGES = " \t\r\n\"'`*."
_FENCE = re.compile(r"\A\s*```(?:json)?\s*(.*?)\s*```\s*\Z", re.DOTALL)
_FINAL = re.compile(r"\A\W*action\W*:\s*(.+?)\s*\Z", re.IGNORECASE)
_SHOWN = 120


class Choice:
    """The legal actions of one turn."""

    def __init__(self, moves: "Moves", legal: Sequence[int] | None) -> None:
        """Allow some of the actions; None for actions that cannot be listed."""
        self._moves = moves
        self.legal = legal
        self.names = [] if legal is None else [moves.name(index) for index in legal]

    @property
    def text(self) -> str:
        """List the legal actions for a prompt."""
        if self.legal is None:
            return self._moves.described
        return "\n".join(f"- {name}" for name in self.names)

    def schema(self, *, thoughts: bool) -> dict[str, Any]:
        """Return the JSON Schema of an answer; thoughts come before the action."""
        action = self._moves.schema if self.legal is None else {"type": "string", "enum": self.names}
        parts: dict[str, Any] = {"thoughts": {"type": "string"}} if thoughts else {}
        parts["action"] = action
        return {"type": "object", "properties": parts, "required": list(parts), "additionalProperties": False}

    def read(self, text: str, *, structured: bool, thoughts: bool) -> Any:
        """Return the action that an answer names; InvalidAnswerError if it names none, or not exactly one."""
        if structured:
            return self._value(_field(text))
        fenced = _FENCE.match(text)
        bare = (fenced[1] if fenced else text).strip()
        if bare.startswith("{"):
            return self._value(_field(bare))
        if thoughts:
            final = _FINAL.match(bare.splitlines()[-1] if bare else "")
            if final is None:
                raise InvalidAnswerError("the last line of the answer is not `ACTION: <action>`")
            bare = final[1]
        else:
            named = _FINAL.match(bare)
            bare = named[1] if named else bare
        return self._value(bare if self.legal is not None else _json(bare))

    def find(self, name: str) -> Any:
        """Return the action of a name, as a tool gets it."""
        return self._value(name)

    def _value(self, given: Any) -> Any:
        if self.legal is None:
            return self._moves.value(given)
        if not isinstance(given, str):
            raise InvalidAnswerError(f"the action {str(given)[:_SHOWN]!r} is no text")
        wanted = _plain(given)
        found = [index for index, name in zip(self.legal, self.names, strict=True) if _plain(name) == wanted]
        if len(found) == 1:
            return self._moves.first + found[0]
        known = _plain(given) in {_plain(name) for name in self._moves.names}
        why = "is not legal now" if known else "is not one of the actions"
        raise InvalidAnswerError(f"{given[:_SHOWN]!r} {why}")


class Moves:
    """All actions of an agent, by its space."""

    def __init__(self, space: dict[str, Any], names: Sequence[str] | None) -> None:
        """Know the space, as JSON; RefusedError if a model cannot answer in it."""
        self._space = space
        kind = space.get("type")
        self.first = int(space.get("start", 0)) if kind == "Discrete" else 0
        count = int(space["n"]) if kind == "Discrete" else 0
        given = list(names or ())
        fits = len(given) == count and len({_plain(name) for name in given}) == count
        self.names = given if fits else [str(self.first + index) for index in range(count)]
        if kind not in {"Discrete", "Box", "MultiDiscrete"}:
            raise RefusedError(f"a language model cannot answer in a space of type {kind}; use another operator")
        self._shape = [len(space["nvec"])] if kind == "MultiDiscrete" else list(space.get("shape") or ())
        if kind == "Box" and len(self._shape) != 1:
            raise RefusedError(f"a language model cannot answer with numbers of the shape {self._shape}")

    def name(self, index: int) -> str:
        """Name an action, counted from 0."""
        return self.names[index]

    def label(self, action: Any) -> str:
        """Name an action as the environment takes it."""
        return self.names[action - self.first] if self.names else json.dumps(action)

    def choice(self, mask: Any) -> Choice:
        """Return what is legal by a mask."""
        if not self.names:
            return Choice(self, None)
        legal = range(len(self.names)) if mask is None else np.flatnonzero(np.asarray(mask)).tolist()
        return Choice(self, list(legal))

    @property
    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of an action that cannot be listed."""
        size = self._shape[0]
        kind = "number" if self._space["type"] == "Box" else "integer"
        return {"type": "array", "items": {"type": kind}, "minItems": size, "maxItems": size}

    @property
    def described(self) -> str:
        """Describe actions that cannot be listed."""
        if self._space["type"] == "MultiDiscrete":
            return f"a list of {self._shape[0]} whole numbers, each from 0 to below {self._space['nvec']}"
        return f"a list of {self._shape[0]} numbers, each from {self._space['low']} to {self._space['high']}"

    def value(self, given: Any) -> Any:
        """Return an action that cannot be listed; InvalidAnswerError if it is not in the space."""
        numbers = isinstance(given, list) and all(type(each) in {int, float} for each in given)
        if not numbers or len(given) != self._shape[0] or not all(math.isfinite(each) for each in given):
            raise InvalidAnswerError(f"{str(given)[:_SHOWN]} is not {self.described}")
        if self._space["type"] == "MultiDiscrete":
            fits = all(
                type(each) is int and 0 <= each < most for each, most in zip(given, self._space["nvec"], strict=True)
            )
        else:
            low, high = (np.broadcast_to(_numbers(self._space[side]), self._shape) for side in ("low", "high"))
            fits = bool(np.all(low <= given) and np.all(given <= high))
        if not fits:
            raise InvalidAnswerError(f"{given} is not {self.described}")
        return given


def _plain(name: str) -> str:
    """Reduce a name to what counts: case, spaces and quotes do not."""
    return " ".join(name.strip(_EDGES).lower().replace("_", " ").split())


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InvalidAnswerError(f"the answer is no JSON: {text[:_SHOWN]!r}") from None


def _field(text: str) -> Any:
    found = _json(text)
    if not isinstance(found, dict) or "action" not in found:
        raise InvalidAnswerError(f'the answer has no "action": {text[:_SHOWN]!r}')
    return found["action"]


def _numbers(bound: Any) -> Any:
    if isinstance(bound, list):
        return np.array([_numbers(each) for each in bound])
    return float(bound)
