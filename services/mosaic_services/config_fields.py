"""Values deep inside a config: a field is a tuple of keys and of positions in lists."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Field", "dotted", "put", "replace_at", "texts"]

Field = tuple[str | int, ...]


def dotted(field: Field) -> str:
    """Write a field as people do: `config.extras.policy_path`."""
    return ".".join(["config", *map(str, field)])


def texts(value: Any, field: Field = ()) -> Iterator[tuple[Field, str]]:
    """Yield every string within a config, and its field."""
    if isinstance(value, str):
        yield field, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from texts(inner, (*field, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from texts(inner, (*field, index))


def replace_at(value: Any, field: Field, new: object) -> Any:
    """Return a copy of a config in which one field has another value; the original stays as it is."""
    if not field:
        return new
    copy = value.copy()
    copy[field[0]] = replace_at(value[field[0]], field[1:], new)
    return copy


def put(fields: dict[str, Any], keys: list[str], value: object) -> None:
    """Set a nested value. Maps on the path are copied, so the original document is unchanged."""
    for key in keys[:-1]:
        inner = fields.get(key)
        inner = dict(inner) if isinstance(inner, dict) else {}
        fields[key] = inner
        fields = inner
    fields[keys[-1]] = value
