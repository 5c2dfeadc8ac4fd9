"""Converts Python, numpy and torch values to JSON.

pydantic's encoder writes a typical event in a microsecond. It raises for reference cycles and invalid unicode; only
then is the value walked and made plain. numpy and torch are not imported: their values are recognised by duck typing.
"""

import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from os import PathLike, fspath
from typing import Any

from pydantic_core import to_json

__all__ = ["encode", "encode_quickly", "to_plain"]

_MAX_DEPTH = 64


def _convert(value: Any) -> Any:
    """Convert a value that JSON does not have."""
    if hasattr(value, "tolist"):  # numpy arrays and scalars, torch tensors
        return value.tolist()
    if hasattr(value, "item"):
        return value.item()
    if isinstance(value, PathLike):
        path = fspath(value)
        return path.decode("utf-8", "backslashreplace") if isinstance(path, bytes) else path
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "backslashreplace")
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, AbstractSet):
        return sorted(value, key=repr)
    if hasattr(value, "model_dump"):  # pydantic
        return value.model_dump()
    if hasattr(value, "isoformat"):  # datetime
        return value.isoformat()
    return str(value)


def _convert_safely(value: Any) -> Any:
    """Convert, or describe what could not be converted: telemetry must not stop a run."""
    try:
        return _convert(value)
    except Exception as error:
        return f"<{type(value).__name__}: {error}>"


def encode_quickly(value: Any) -> bytes:
    """Encode a value that needs no walk, or raise; `encode` never fails."""
    return to_json(value, inf_nan_mode="strings", fallback=_convert_safely)


def encode(value: Any) -> bytes:
    """Encode a value as compact JSON in UTF-8; NaN and infinities become strings, unknown objects their text."""
    try:
        return encode_quickly(value)
    except (ValueError, TypeError, RecursionError):
        return encode_quickly(to_plain(value))


def to_plain(value: Any) -> Any:
    """Walk a value and return one made only of what JSON has: dict, list, str, int, finite float, bool and None."""
    return _plain(value, ())


def _plain(value: Any, inside: tuple[int, ...]) -> Any:
    """Make a value plain; `inside` holds the ids of the enclosing values, to detect a cycle."""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return str(value) if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, float):
        return _plain_float(float(value))
    if isinstance(value, int):
        return int(value)
    if id(value) in inside or len(inside) > _MAX_DEPTH:
        return f"<{type(value).__name__}: nested too deeply>"
    inside = (*inside, id(value))
    if isinstance(value, dict):
        return {_plain_key(key): _plain(item, inside) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, inside) for item in value]
    converted = _convert_safely(value)  # a reference, so that its id is not reused
    return _plain(converted, inside)


def _plain_float(value: float) -> float | str:
    if math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def _plain_key(key: Any) -> str:
    if key is None or isinstance(key, bool):
        return {None: "null", True: "true", False: "false"}[key]
    plain = to_plain(key)
    return plain if isinstance(plain, str) else encode_quickly(plain).decode()  # str() refuses very long numbers
