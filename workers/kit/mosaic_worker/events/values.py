"""Fields of any type, read as what they should be: a worker can write anything into any of them."""

import math
from datetime import UTC, datetime

__all__ = ["clean", "integer", "name", "number", "text", "time"]

LOWEST, HIGHEST = -(2**63), 2**63 - 1
"""The integers that a reader keeps: 64 bits."""
_NUMBER_CHARACTERS = 40
"""A longer string is not read as a number; conversion of long ones is slow."""
_TEXT_CHARACTERS = 500
_NAME_CHARACTERS = 100


def number(value: object) -> float | None:
    """Read a number, or the name of one that JSON lacks (`"NaN"`, `"Infinity"`)."""
    if type(value) is float:
        return value
    if isinstance(value, int):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    if type(value) is str and len(value) < _NUMBER_CHARACTERS:
        try:
            return float(value)
        except ValueError:
            return None
    return None


def integer(value: object) -> int | None:
    """Read an integer of 64 bits; fractions are cut off."""
    if type(value) is str and len(value) < _NUMBER_CHARACTERS:
        value = number(value)
    if type(value) is float and math.isfinite(value):
        value = int(value)
    return value if type(value) is int and LOWEST <= value <= HIGHEST else None


def time(value: object) -> float | None:
    """Read seconds since 1970, from a number or ISO 8601; a time without a zone is taken as UTC."""
    if type(value) is str:
        try:
            moment = datetime.fromisoformat(value)
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            pass
    return number(value)


def text(value: object) -> str:
    """Read a string or a number as text of bounded length; of anything else the type's name, since it may be huge."""
    if type(value) is str and value.isascii() and len(value) <= _TEXT_CHARACTERS:
        return value
    if value is None:
        return ""
    shown = str(value) if isinstance(value, (str, int, float)) else type(value).__name__
    return clean(shown[:_TEXT_CHARACTERS])


def name(value: object) -> str | None:
    """Read the name of an agent: a string or a whole number; nothing else is one."""
    if value is None or not (type(value) is str or type(value) is int):
        return None
    return clean(str(value)[:_NAME_CHARACTERS]) or None


def clean(string: str) -> str:
    """Replace lone surrogates, which UTF-8, and so SQLite, cannot hold."""
    return string if string.isascii() else string.encode("utf-8", "replace").decode()
