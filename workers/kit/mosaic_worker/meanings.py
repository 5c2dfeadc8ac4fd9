"""The names of an environment's actions, where it has any."""

import re
from collections.abc import Sequence
from enum import Enum
from typing import Any

__all__ = ["action_meanings", "find_noop"]

_NOTHING = ("noop", "still", "stay", "idle", "wait", "nothing", "done")
"""Words by which environments name the action that does nothing; the first that is found counts."""
_NO = re.compile(r"\bno[\s_-]*(op|action|move|movement)\b")


def action_meanings(env: Any) -> list[str] | None:
    """Return the names of the discrete actions of an environment, from its own methods; None if it has none.

    Atari has `get_action_meanings()`; MiniGrid and BabyAI have an enum `actions`.
    """
    inner = getattr(env, "unwrapped", env)
    try:
        found = inner.get_action_meanings()
    except Exception:
        actions = getattr(inner, "actions", None)
        if not (isinstance(actions, type) and issubclass(actions, Enum)):
            return None
        found = [action.name for action in sorted(actions, key=lambda action: action.value)]
    return [str(name) for name in found] if isinstance(found, list | tuple) else None


def find_noop(meanings: Sequence[str] | None) -> int | None:
    """Return the index of the action whose name says that it does nothing; None if there is none."""
    words = [re.findall(r"[a-z]+", _NO.sub("noop", str(name).lower())) for name in meanings or ()]
    for nothing in _NOTHING:
        for index, name in enumerate(words):
            if nothing in name:
                return index
    return None
