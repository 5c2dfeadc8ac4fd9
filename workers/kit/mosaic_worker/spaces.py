"""Observation and action spaces as JSON, and values of a space back from JSON.

Works with gymnasium and with old gym: a space is recognised by the name of its class, and only `space_from_json`
imports a library, gymnasium if there is one.
"""

import string
from importlib import import_module
from typing import Any

from mosaic_worker.errors import SpaceError

__all__ = ["space_from_json", "space_to_json", "value_from_json", "values_from_json"]

_KINDS = ("Discrete", "Box", "MultiDiscrete", "MultiBinary", "Text", "Dict", "Tuple")
_FLOATS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def _kind(space: Any) -> str | None:
    """Return the kind of a space; a subclass has the kind of its base."""
    return next((base.__name__ for base in type(space).__mro__ if base.__name__ in _KINDS), None)


def space_to_json(space: Any) -> dict[str, Any]:
    """Describe a space. An unknown kind becomes its class name and text, which cannot be converted back."""
    kind = _kind(space)
    if kind == "Discrete":
        return {"type": kind, "n": int(space.n), "start": int(getattr(space, "start", 0))}
    if kind == "Box":
        low, high = _bound(space.low), _bound(space.high)
        return {"type": kind, "low": low, "high": high, "shape": list(space.shape), "dtype": str(space.dtype)}
    if kind == "MultiDiscrete":
        return {"type": kind, "nvec": space.nvec.tolist()}
    if kind == "MultiBinary":
        shape = getattr(space, "n", space.shape)
        return {"type": kind, "n": shape if isinstance(shape, int) else [int(size) for size in shape]}
    if kind == "Text":
        charset = "".join(getattr(space, "character_list", ()))
        return {"type": kind, "min_length": space.min_length, "max_length": space.max_length, "charset": charset}
    if kind == "Dict":
        return {"type": kind, "spaces": {str(key): space_to_json(part) for key, part in space.spaces.items()}}
    if kind == "Tuple":
        return {"type": kind, "spaces": [space_to_json(part) for part in space.spaces]}
    if type(space).__name__ == "MissionSpace":  # of MiniGrid: sentences
        return {"type": "Text", "min_length": 0, "max_length": 1024, "charset": string.printable}
    return {"type": type(space).__name__, "repr": str(space)}


def _bound(bound: Any) -> Any:
    """Return a Box's bound as one number if it is the same everywhere, as for images."""
    first = bound.flat[0].item() if bound.size else 0.0
    plain = first if (bound == first).all() else bound.tolist()
    return _name_infinities(plain)


def _name_infinities(value: Any) -> Any:
    if isinstance(value, list):
        return [_name_infinities(item) for item in value]
    return {float("inf"): "Infinity", float("-inf"): "-Infinity"}.get(value, value)


def _read_infinities(value: Any) -> Any:
    if isinstance(value, list):
        return [_read_infinities(item) for item in value]
    return _FLOATS.get(value, value) if isinstance(value, str) else value


def space_from_json(description: Any) -> Any:
    """Build the gymnasium (or gym) space of a description."""
    try:
        spaces = import_module("gymnasium.spaces")
    except ImportError:
        spaces = import_module("gym.spaces")
    try:
        return _build(spaces, description)
    except SpaceError:
        raise
    except Exception as error:
        raise SpaceError(f"{description!r} is not a space: {type(error).__name__}: {error}") from error


def _build(spaces: Any, description: Any) -> Any:
    kind = description["type"] if isinstance(description, dict) and "type" in description else None
    if kind == "Discrete":
        start = description.get("start", 0)
        return spaces.Discrete(description["n"], start=start) if start else spaces.Discrete(description["n"])
    if kind == "Box":
        return _build_box(spaces, description)
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(description["nvec"])
    if kind == "MultiBinary":
        return spaces.MultiBinary(description["n"])
    if kind == "Text":
        lengths = {name: description[name] for name in ("min_length", "max_length")}
        return spaces.Text(**lengths, **({"charset": description["charset"]} if description.get("charset") else {}))
    if kind == "Dict":
        return spaces.Dict({key: _build(spaces, part) for key, part in description["spaces"].items()})
    if kind == "Tuple":
        return spaces.Tuple([_build(spaces, part) for part in description["spaces"]])
    raise SpaceError(f"{description!r} is not a space; type is one of {', '.join(_KINDS)}")


def _build_box(spaces: Any, description: dict[str, Any]) -> Any:
    import numpy as np  # noqa: PLC0415 - only now needed, and gymnasium has it loaded already

    dtype, shape = np.dtype(description.get("dtype", "float32")), tuple(description["shape"])
    low, high = (
        np.broadcast_to(np.asarray(_read_infinities(description[bound]), dtype=dtype), shape).copy()
        for bound in ("low", "high")
    )
    return spaces.Box(low, high, shape=shape, dtype=dtype.type)


def value_from_json(space: Any, value: Any) -> Any:
    """Convert a plain JSON value to one that the space contains: an int, an array of its dtype, a dict of those."""
    kind = _kind(space)
    try:
        if kind == "Discrete":
            return int(value)
        if kind in {"Box", "MultiDiscrete", "MultiBinary"}:
            import numpy as np  # noqa: PLC0415

            return np.asarray(_read_infinities(value), dtype=space.dtype).reshape(space.shape)
        if kind == "Dict":
            return {key: value_from_json(part, value[key]) for key, part in space.spaces.items()}
        if kind == "Tuple":
            return tuple(value_from_json(part, item) for part, item in zip(space.spaces, value, strict=True))
    except SpaceError:
        raise
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise SpaceError(f"{value!r} is not a value of {space}: {error}") from error
    return value


def values_from_json(space: Any, values: Any) -> Any:
    """Convert the joined observations of several lanes: one array with a row per lane, a dict of those, or a list."""
    dtype = getattr(values, "dtype", None)
    if dtype is not None and dtype == space.dtype and values.shape[1:] == space.shape:
        return values  # it came through shared memory
    kind = _kind(space)
    if kind == "Dict":
        return {key: values_from_json(part, values[key]) for key, part in space.spaces.items()}
    if kind not in {"Discrete", "Box", "MultiDiscrete", "MultiBinary"}:
        return [value_from_json(space, value) for value in values]
    import numpy as np  # noqa: PLC0415

    try:
        batch = np.asarray(_read_infinities(values), dtype=getattr(space, "dtype", None) or np.int64)
        return batch.reshape(len(batch), *(space.shape or ()))
    except (TypeError, ValueError, OverflowError) as error:
        raise SpaceError(f"these are not values of {space}: {error}") from error
