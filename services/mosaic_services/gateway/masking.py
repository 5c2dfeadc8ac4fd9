"""Hides secrets in what leaves the gateway: values of keys such as `api_key` or `password`, wherever they are."""

from __future__ import annotations

import re
from typing import Any

__all__ = ["MASK", "mask"]

MASK = "•••"
_NAMES = (
    r"(?:[a-z0-9_.-]*[_.-])?(?:token|secret|password|passwd|passphrase|credentials?|private_?key|(?:api|access|auth|secret)"
    r"[_-]?key|authorization)"
)
_NAME = re.compile(_NAMES, re.IGNORECASE)
# The same in a line of JSON that is passed on as text.
_IN_TEXT = re.compile(rf'("{_NAMES}"\s*:\s*")(?:[^"\\]|\\.)*(")', re.IGNORECASE)


def mask(value: Any) -> Any:
    """Return the same without secrets. Only text is hidden: `max_tokens: 100` is none."""
    if isinstance(value, dict):
        return {
            key: MASK
            if isinstance(item, str) and item and isinstance(key, str) and _NAME.fullmatch(key)
            else _mask_line(item)
            if key == "line" and isinstance(item, str)
            else mask(item)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [mask(each) if isinstance(each, dict | list) else each for each in value]
    return value


def _mask_line(line: str) -> str:
    return _IN_TEXT.sub(rf"\g<1>{MASK}\g<2>", line) if '"' in line else line
