"""Writes docs/messages.md, the reference of all bodies and commands, from the models in mosaic_bus.

python scripts/generate_message_docs.py          writes the file
python scripts/generate_message_docs.py --check  exits with 1 if the file is out of date
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic_bus import messages, refusals
from mosaic_bus.commands import Command, Query, common, operator, scheduler, supervisor, telemetry
from mosaic_bus.messages import Model
from mosaic_bus.refusals import RefusalCode
from mosaic_services.stack.services import in_start_order

if TYPE_CHECKING:
    from collections.abc import Iterator

TARGET = Path(__file__).resolve().parent.parent / "docs" / "messages.md"

HEAD = """# Bodies and commands

<!-- Written by scripts/generate_message_docs.py from bus/mosaic_bus/messages.py and commands/: edit those. -->

What stands in the payload of each message, for people who write a client. How messages travel is in
[protocol.md](protocol.md); complete messages, byte for byte, are in `tests/golden/`.

Types are those of msgpack: a `number` may be an integer or a float (`inf` and `nan` included), `object` is a map with
string keys, `T or null` may be absent. A whole number beyond 64 bits travels as a string of digits. Fields without a
default are required. Receivers ignore keys of bodies that they do not know, so new ones may appear at any time;
arguments of commands that a service does not know are refused, since they are probably misspelt.
"""

COMMANDS_HEAD = """## Commands

Publish to
`command.<service>.`; see [part 3 of the protocol](protocol.md#part-3-commands). Besides the codes given below,
any command can be refused with `unknown_command`, `invalid_arguments`, `too_large`, `busy` and `internal`.
"""

REFUSALS_HEAD = """## Refusals

A refusal has a `code`, a `message` for people, and `details` for programs: never read anything out of the message. The
fields of [RefusalDetails](#refusaldetails) that can come with a code are in the last column; `index` comes only with
`submit_many` and `runs`.

| code | meaning | details |
|---|---|---|
"""

# The modules of mosaic_bus.commands: which service answers, and its address.
SERVICES = {
    common: ("every service", ", ".join(f"`{row.bus_name('<host>')}`" for row in in_start_order())),
    scheduler: ("scheduler", "`scheduler`"),
    supervisor: ("supervisor", "`supervisor.<host>`"),
    telemetry: ("telemetry", "`telemetry`"),
    operator: ("operator", "`operator`"),
}
TOPICS = {
    "ServiceState": "state.service.<service>.",
    "HostState": "state.host.<host>.",
    "StreamTails": "streams.<host>.",
    "BuildProgress": "build.<host>.",
    "RunState": "state.run.<run>.",
    "Batch": "journal.<run>.`, `log.<run>.` and `repair.<run>.",
    "RunSummary": "summary.<run>.",
    "FrameHandle": "frame.<run>.` and, with the picture as buffer, `picture.<run>.<max_dim>.<quality>.",
    "StoredPositions": "stored.",
    "ExperimentState": "state.experiment.<experiment>.",
}


def models_of(module: Any) -> Iterator[type[Any]]:
    """The models and enumerations that a module defines, in its order."""
    for each in vars(module).values():
        if inspect.isclass(each) and each.__module__ == module.__name__ and "[" not in each.__name__:
            yield each


def type_text(schema: dict[str, Any]) -> str:
    """Describe a JSON Schema in a few words, with links to models."""
    if "$ref" in schema:
        name = schema["$ref"].rsplit("/", 1)[-1]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        texts = [type_text(each) for each in schema["anyOf"]]
        return "number" if set(texts) == {"integer", "number"} else " or ".join(texts)
    if "enum" in schema:
        return " or ".join(f'`"{value}"`' for value in schema["enum"])
    match schema.get("type"):
        case "array":
            return f"list of {type_text(schema.get('items', {}))}"
        case "object":
            values = schema.get("additionalProperties")
            return f"object of {type_text(values)}" if isinstance(values, dict) else "object"
        case None:
            return "anything"
        case kind:
            return str(kind)


NEW_EACH_TIME = "made anew"
CONSTRAINTS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
    "maxLength": "at most {} characters",
    "minLength": "at least {} characters",
    "pattern": "matches `{}`",
}


def field_row(name: str, schema: dict[str, Any], required: bool, factory_default: Any) -> str:
    """One row of a table of fields."""
    choices = [schema, *schema.get("anyOf", [])]
    limits = [text.format(each[key]) for each in choices for key, text in CONSTRAINTS.items() if key in each]
    notes = "; ".join([*filter(None, [schema.get("description", "")]), *limits])
    default = "required" if required else f"`{json.dumps(schema.get('default', factory_default))}`"
    if factory_default is NEW_EACH_TIME:
        default = "made anew"
    cells = (f"`{name}`", type_text(schema), default, notes)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def fields_table(model: type[Model]) -> str:
    """All fields of a model."""
    schema = model.model_json_schema(mode="validation")
    properties = schema.get("properties", {})
    if not properties:
        return "No fields."
    rows = ["| field | type | default | notes |", "|---|---|---|---|"]
    for name, field in properties.items():
        info = model.model_fields[name]
        made = None
        if info.default_factory is not None:
            # A generated default, such as a new id, is explained by the description.
            first, second = (info.get_default(call_default_factory=True, validated_data={}) for _ in range(2))
            made = (
                NEW_EACH_TIME
                if first != second
                else first.model_dump(mode="json")
                if isinstance(first, Model)
                else first
            )
        rows.append(field_row(name, field, name in schema.get("required", []), made))
    return "\n".join(rows)


def text_of(model: type[Any]) -> str:
    """The docstring without its indentation."""
    return inspect.cleandoc(model.__doc__ or "")


def enum_section(enum: type[StrEnum]) -> str:
    """The values of an enumeration."""
    values = ", ".join(f'`"{each.value}"`' for each in enum)
    return f"### {enum.__name__}\n\n{text_of(enum)} One of {values}."


def body_section(model: type[Model]) -> str:
    """A body: where it is published, what it means, its fields."""
    topic = f"\n\nPublished on `{TOPICS[model.__name__]}`." if model.__name__ in TOPICS else ""
    return f"### {model.__name__}\n\n{text_of(model)}{topic}\n\n{fields_table(model)}"


def command_section(command: type[Command[Any]]) -> str:
    """A command: what it does, its arguments, its result and how it can be refused."""
    text = text_of(command)
    codes = re.search(r"Refused with (.+?)\.(?:\s|$)", text, re.DOTALL)
    text = re.sub(r"\s*Refused with .+?\.(?=\s|$)", "", text, flags=re.DOTALL)
    result = command.result.__name__
    refused = f"\n\nRefused with {' '.join(codes[1].split())}." if codes else ""
    return (
        f"#### {command.name}\n\n{text}\n\nArguments:\n\n{fields_table(command)}\n\n"
        f"Result: [{result}](#{result.lower()}){refused}"
    )


def refusals_section() -> str:
    """The codes of refusals, and the models of their details."""
    rows = [
        f"| `{each.value}` | {each.meaning} | {', '.join(f'`{name}`' for name in each.details)} |"
        for each in RefusalCode
    ]
    models = [each for each in models_of(refusals) if issubclass(each, Model)]
    return "\n\n".join([REFUSALS_HEAD + "\n".join(rows), *map(body_section, models)])


def services_section() -> str:
    """The table of services, in the order in which they start."""
    rows = [
        f"| `{row.bus_name('<host>')}` | {row.purpose} | {', '.join(row.needs) or '–'} |" for row in in_start_order()
    ]
    return "\n".join(["### Services", "", "| name on the bus | what it does | needs |", "|---|---|---|", *rows])


def render() -> str:
    """The whole page."""
    parts = [HEAD, "## Bodies"]
    for each in models_of(messages):
        if issubclass(each, StrEnum):
            parts.append(enum_section(each))
        elif issubclass(each, Model) and each is not Model:
            parts.append(body_section(each))
    parts.extend([COMMANDS_HEAD, services_section()])
    results: list[type[Any]] = []
    for module, (service, address) in SERVICES.items():
        models = [each for each in models_of(module) if each not in {Command, Query}]
        parts.append(f"### Commands of {service}\n\nSend to: {address}")
        parts.extend(command_section(each) for each in models if issubclass(each, Command))
        results.extend(each for each in models if not issubclass(each, Command))
    parts.append("## Results of commands")
    parts.extend(body_section(each) for each in results)
    parts.append(refusals_section())
    return "\n\n".join(part.strip() for part in parts) + "\n"


def main() -> int:
    """Write the page, or compare it."""
    page = render()
    if "--check" in sys.argv[1:]:
        if TARGET.exists() and TARGET.read_text() == page:
            return 0
        print(f"{TARGET.name} is out of date: run scripts/generate_message_docs.py", file=sys.stderr)
        return 1
    TARGET.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
