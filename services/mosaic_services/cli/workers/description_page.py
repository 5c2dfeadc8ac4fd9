"""Renders `mosaic workers describe`: metadata, capabilities and the configuration as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from mosaic_services.cli.display.output import console, say, styled, table

if TYPE_CHECKING:
    from pathlib import Path

    from rich.table import Table

__all__ = ["print_algorithm", "print_description", "type_of"]

_SET_BY_THE_PLATFORM = frozenset({"run_id", "worker_id"})
_NAMES_SHOWN = 8


def print_description(worker: str, profile: str, description: dict[str, Any], upstream: Path | None) -> None:
    """Print metadata, capabilities, algorithms, configuration and an example command."""
    metadata = description.get("metadata") or {}
    say((str(metadata.get("name", worker)), "bold"), f"  {metadata.get('version', '')}  profile {profile}")
    if about := metadata.get("description") or metadata.get("summary"):
        say(str(about))
    if upstream is not None:
        say(f"checkout: {upstream}")
    _print_map("about", {k: v for k, v in metadata.items() if k not in {"name", "version", "description", "summary"}})
    _print_map("can", description.get("capabilities") or {})
    _print_algorithms(worker, profile, description.get("algorithms") or [])
    _print_config(description.get("config_schema") or {})
    example = description.get("example_config") or {}
    words = " ".join(f"{key}={_word(value)}" for key, value in example.items())
    say(("\nEXAMPLE", "bright_black"))
    console().print(f"mosaic submit --worker {worker}{_option(profile)} {words}".rstrip(), soft_wrap=True)


def print_algorithm(card: dict[str, Any]) -> None:
    """Print one algorithm: whether it runs here, and its hyperparameters."""
    say((str(card["name"]), "bold"), f"  {card.get('family', '')}, {card.get('actions', '')} actions")
    if not card.get("runs"):
        say(("does not run here: ", "yellow"), str(card.get("needs", "")))
        return
    say(f"from {card.get('source', '')}")
    rows = table("hyperparameter", "type", "default", "help")
    rows.columns[3].no_wrap = False
    for each in card.get("parameters") or []:
        default = "" if each.get("default") is None else _text(each["default"])
        rows.add_row(styled((each["name"], "bold")), each["type"], default, each.get("help", ""))
    console().print(rows)
    say(("give them as extras.algo_params.NAME=VALUE", "bright_black"))


def _option(profile: str) -> str:
    return "" if profile == "default" else f" --profile {profile}"


def _print_algorithms(worker: str, profile: str, cards: list[dict[str, Any]]) -> None:
    if not cards:
        return
    say(("\nALGORITHMS", "bright_black"))
    rows = table("algo", "family", "actions", "runs here")
    rows.columns[3].no_wrap = False
    for card in cards:
        needs = str(card.get("needs", "")).removeprefix(f"{card['name']} ")  # its name is in the same row
        runs = styled((f"✓ {card.get('source', '')}", "green")) if card.get("runs") else styled(needs)
        rows.add_row(styled((card["name"], "bold")), card.get("family", ""), card.get("actions", ""), runs)
    console().print(rows)
    hint = f"hyperparameters: mosaic workers describe {worker}{_option(profile)} --algo NAME"
    say((hint, "bright_black"))


def _print_map(title: str, content: dict[str, Any]) -> None:
    if not content:
        return
    say((f"\n{title.upper()}", "bright_black"))
    rows = table("", "")
    rows.show_header = False
    rows.columns[0].style = "bright_black"
    rows.columns[1].no_wrap = False
    for key, value in content.items():
        if value not in (None, "", [], {}):
            rows.add_row(str(key).replace("_", " "), _text(value))
    console().print(rows)


def _print_config(schema: dict[str, Any]) -> None:
    if not schema.get("properties"):
        return
    say(("\nCONFIG", "bright_black"))
    rows = table("field", "type", "default", "help")
    rows.columns[1].no_wrap = rows.columns[3].no_wrap = False
    _add_fields(rows, schema, schema, "")
    console().print(rows)


def _add_fields(rows: Table, part: dict[str, Any], schema: dict[str, Any], prefix: str) -> None:
    """Add a row for each field, including nested ones."""
    required = set(part.get("required") or ())
    for name, field in (part.get("properties") or {}).items():
        if name in _SET_BY_THE_PLATFORM:
            continue
        nested = _resolved(field, schema)
        if nested.get("properties"):
            _add_fields(rows, nested, schema, f"{prefix}{name}.")
            continue
        given = _text(field["default"]) if "default" in field else ""
        default = styled(("required", "yellow")) if name in required else styled(given)
        rows.add_row(styled((prefix + name, "bold")), type_of(field, schema), default, field.get("description", ""))


def _resolved(field: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    """Resolve a `$ref`."""
    if "$ref" not in field:
        return field
    name = str(field["$ref"]).rsplit("/", 1)[-1]
    found: dict[str, Any] = (schema.get("$defs") or {}).get(name, {"type": name})
    return found


def type_of(field: dict[str, Any], schema: dict[str, Any]) -> str:
    """Format the type of a field: `integer ≥ 1`, `random | passive`."""
    if "$ref" in field:
        return type_of(_resolved(field, schema), schema)
    if "enum" in field:
        names = [str(each) for each in field["enum"]]
        more = f" | … {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        return " | ".join(names[:_NAMES_SHOWN]) + more
    if "const" in field:
        return str(field["const"])
    for key in ("anyOf", "oneOf"):
        if key in field:
            return " | ".join(type_of(each, schema) for each in field[key])
    kind = field.get("type", "any")
    kind = " | ".join(kind) if isinstance(kind, list) else str(kind)
    if kind == "array" and isinstance(field.get("items"), dict):
        kind = f"list of {type_of(field['items'], schema)}"
    marks = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    return " ".join([kind, *(f"{mark} {field[key]:g}" for key, mark in marks.items() if key in field)])


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and all(isinstance(each, str | int | float) for each in value):
        return ", ".join(map(str, value))
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _word(value: object) -> str:
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return text if text.replace("-", "").replace("_", "").replace(".", "").isalnum() else f"'{text}'"
