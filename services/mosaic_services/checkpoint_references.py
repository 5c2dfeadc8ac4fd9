"""References to checkpoints of runs, `run:NAME@best`: how they are written, and which checkpoint they mean."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mosaic_bus.commands import SavedCheckpoint

__all__ = ["FORM", "is_reference", "parse", "pick"]

PREFIX = "run:"
FORM = "run:NAME@last, run:NAME@best or run:NAME@STEP"
_PARSED = re.compile(r"run:(?P<run>.+?)(?:@(?P<wanted>last|best|\d{1,18}))?", re.DOTALL)


def is_reference(text: str) -> bool:
    """Whether a text is meant as a reference, well-formed or not."""
    return text.startswith(PREFIX)


def parse(text: str) -> tuple[str, str] | None:
    """Return the run that is named, and which of its checkpoints is wanted; None if the text is malformed."""
    found = _PARSED.fullmatch(text)
    if found is None or not found["run"].strip():
        return None
    # `run:train@bst` is a mistake, and not a run that is called `train@bst`.
    if found["wanted"] is None and "@" in found["run"]:
        return None
    wanted = found["wanted"] or "last"
    return found["run"].strip(), str(int(wanted)) if wanted.isdigit() else wanted


def pick(wanted: str, saved: Sequence[SavedCheckpoint]) -> SavedCheckpoint | None:
    """Choose the newest of the checkpoints that a reference fits."""
    match wanted:
        case "last":
            fitting = list(saved)
        case "best":
            fitting = [each for each in saved if each.best]
        case step:
            fitting = [each for each in saved if each.step == int(step)]
    return fitting[-1] if fitting else None
