"""The commands that can be sent over HTTP, found in `mosaic_bus.commands`, and their OpenAPI document."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import cache
from typing import Any

from pydantic.json_schema import models_json_schema

import mosaic_bus.commands
from mosaic_bus.commands import Command, Info, Ping, Query, Stats
from mosaic_bus.refusals import RefusalCode, RefusalDetails
from mosaic_services.stack.services import SERVICES

__all__ = ["STATUS", "find_command", "is_query", "openapi", "service_kind"]

_COMMON: tuple[type[Command[Any]], ...] = (Ping, Info, Stats)
_PER_HOST = {row.name for row in SERVICES if row.per_host}

# The HTTP status of a refusal; 409 for all others, since they speak of the state of something.
STATUS = {
    RefusalCode.INVALID_ARGUMENTS: 422,
    RefusalCode.INVALID_CONFIG: 422,
    RefusalCode.BUSY: 503,
    RefusalCode.STORE_UNAVAILABLE: 503,
    RefusalCode.INTERNAL: 500,
    RefusalCode.TOO_LARGE: 413,
    **{code: 404 for code in RefusalCode if code.startswith("unknown_")},
}


@cache
def commands() -> dict[str, dict[str, type[Command[Any]]]]:
    """Return the commands by kind of service and name, without those that only services send."""
    found: dict[str, dict[str, type[Command[Any]]]] = {}
    for module in pkgutil.iter_modules(mosaic_bus.commands.__path__):
        if module.name == "common":
            continue
        inside = vars(importlib.import_module(f"mosaic_bus.commands.{module.name}"))
        own = [
            each
            for each in inside.values()
            if inspect.isclass(each)
            and issubclass(each, Command)
            and each.__module__.endswith(f".{module.name}")
            and hasattr(each, "name")
        ]
        found[module.name] = {each.name: each for each in (*_COMMON, *own) if not each.internal}
    found["gateway"] = {each.name: each for each in _COMMON}
    return found


def service_kind(service: str) -> str | None:
    """Return the kind of a service by its name on the bus: `supervisor` of `supervisor.local`."""
    kind, _, host = service.partition(".")
    return kind if kind in commands() and bool(host) == (kind in _PER_HOST) else None


def find_command(service: str, name: str) -> type[Command[Any]] | None:
    """Return the command of a service; None if it has none of that name, or only services may send it."""
    kind = service_kind(service)
    return None if kind is None else commands()[kind].get(name)


def is_query(kind: type[Command[Any]]) -> bool:
    """Whether a command changes nothing, so that a viewer may send it."""
    return issubclass(kind, Query) or kind in _COMMON


@cache
def openapi() -> dict[str, Any]:
    """Describe every command as OpenAPI 3.1."""
    kinds = {kind for known in commands().values() for kind in known.values()}
    ordered = sorted(kinds, key=lambda kind: (kind.__module__, kind.__name__))
    wanted: list[Any] = [(kind, "validation") for kind in ordered]
    wanted += [(kind.result, "serialization") for kind in ordered]
    wanted += [(RefusalDetails, "serialization")]
    refs, document = models_json_schema(
        list(dict.fromkeys(wanted)),
        ref_template="#/components/schemas/{model}",
    )
    refusal = {
        "type": "object",
        "required": ["code", "message", "details"],
        "properties": {
            "code": {"type": "string", "enum": [str(code) for code in RefusalCode]},
            "message": {"type": "string"},
            "details": refs[RefusalDetails, "serialization"],
        },
    }
    paths = {}
    for service, known in commands().items():
        path = f"/api/{service}.{{host}}" if service in _PER_HOST else f"/api/{service}"
        for name, kind in known.items():
            about = inspect.getdoc(kind) or ""
            operation: dict[str, Any] = {
                "operationId": f"{service}_{name}",
                "tags": [service],
                "summary": about.partition("\n")[0],
                "description": about,
                "x-viewer": is_query(kind),
                "requestBody": {"content": {"application/json": {"schema": refs[kind, "validation"]}}},
                "responses": {
                    "200": _answer("the result", refs[kind.result, "serialization"]),
                    "default": _answer("a refusal", {"$ref": "#/components/schemas/Refusal"}),
                },
            }
            if service in _PER_HOST:
                operation["parameters"] = [
                    {"name": "host", "in": "path", "required": True, "schema": {"type": "string"}}
                ]
            paths[f"{path}/{name}"] = {"post": operation}
    schemas = {**document.get("$defs", {}), "Refusal": refusal}
    return {
        "openapi": "3.1.0",
        "info": {"title": "MOSAIC", "version": "1", "description": "Every command of the bus, over HTTP."},
        "components": {
            "schemas": schemas,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}],
        "paths": paths,
    }


def _answer(about: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": about, "content": {"application/json": {"schema": schema}}}
