"""Turns files and KEY=VALUE words into run specs; refuses what it does not know, with near names."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from mosaic_bus.messages import Resources, RunSpec
from mosaic_bus.service import explain
from mosaic_services.cli.errors import InputError

__all__ = ["make_spec", "parse_override", "read_file", "split_words"]

_FIELDS = tuple(RunSpec.model_fields)


def split_words(words: list[str]) -> tuple[list[Path], list[str]]:
    """Tell files from KEY=VALUE words."""
    files, overrides = [], []
    for word in words:
        if "=" in word and not Path(word).exists():
            overrides.append(word)
        else:
            files.append(Path(word))
    return files, overrides


def read_file(path: Path) -> dict[str, Any]:
    """Read a run from a YAML or JSON file."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        near = _near_files(path)
        raise InputError(f"{path}: no such file", f"did you mean {near}?" if near else "") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise InputError(
            f"{path}{where}: {getattr(error, 'problem', None) or 'not YAML'}", detail=str(error)
        ) from error
    if not isinstance(document, dict):
        raise InputError(f"{path}: a run is a map of fields, this is {_kind(document)}", "start with: worker: baseline")
    return {str(key): value for key, value in document.items()}


def _near_files(path: Path) -> str:
    folder = path.parent
    names = [each.name for each in folder.iterdir() if each.is_file()] if folder.is_dir() else []
    return ", ".join(str(folder / name) for name in difflib.get_close_matches(path.name, names))


def _kind(document: object) -> str:
    return "empty" if document is None else f"a {type(document).__name__}"


def parse_override(word: str) -> tuple[list[str], Any]:
    """Read `config.seed=3` as (["config", "seed"], 3); a bare key that is no field of a run means config."""
    key, _, text = word.partition("=")
    keys = key.strip().split(".")
    if not all(keys):
        raise InputError(f"{word!r} is not KEY=VALUE", "for example: config.seed=3")
    try:
        value = yaml.safe_load(text) if text else ""
    except yaml.YAMLError as error:
        raise InputError(
            f"{key}: {text!r} is not a YAML value", "quote it: KEY='\"text\"'", detail=str(error)
        ) from error
    if keys[0] not in _FIELDS:
        keys = ["config", *keys]
    return keys, value


def make_spec(document: dict[str, Any], overrides: list[str], where: str) -> RunSpec:
    """Put overrides onto a document and check that it is a run; `where` names it in errors."""
    fields = dict(document)
    for word in overrides:
        keys, value = parse_override(word)
        _put(fields, keys, value)
    _refuse_unknown(fields, _FIELDS, where)
    if isinstance(fields.get("resources"), dict):
        _refuse_unknown(fields["resources"], tuple(Resources.model_fields), f"{where}: resources")
    if "worker" not in fields:
        raise InputError(f"{where}: no worker is named", "add: worker: baseline   (mosaic workers list)")
    try:
        return RunSpec.model_validate(fields)
    except ValidationError as error:
        raise InputError(f"{where}: {explain(error)}", detail=str(error)) from error


def _put(fields: dict[str, Any], keys: list[str], value: object) -> None:
    for key in keys[:-1]:
        inner = fields.get(key)
        inner = dict(inner) if isinstance(inner, dict) else {}
        fields[key] = inner
        fields = inner
    fields[keys[-1]] = value


def _refuse_unknown(fields: dict[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in fields:
        if key in known:
            continue
        near = difflib.get_close_matches(key, known, n=2)
        hint = f"did you mean {' or '.join(near)}?" if near else f"the fields are: {', '.join(known)}"
        if not near and known is _FIELDS:
            hint += "\nwhat the worker understands goes under config:"
        raise InputError(f"{where}: field {key!r} is unknown", hint)
