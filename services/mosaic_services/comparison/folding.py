"""Runs that differ only in their seed are one setting. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mosaic_services.sweeps.naming import labels

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mosaic_bus.messages import RunSpec

__all__ = ["Setting", "fold", "parameters"]

# What says nothing about how a run learns, or is the seed.
_NOT_VARIED = {"name", "group", "replaces"}
_FOLDED = {"config.seed", "config.total_episodes"}
_LONGEST_LABEL = 50
_SEED = re.compile(r"-seed\d+$")
_NOT_A_SETTING = ("resources.", "limits.", "retries.", "priority", "grace_s", "after", "requires", "wait_for_host")


@dataclass
class Setting:
    """What several runs have in common, and which runs they are."""

    values: dict[str, Any]
    """What tells it from the other settings, by dotted path."""
    label: str
    runs: list[str] = field(default_factory=list)


def parameters(specs: Mapping[str, RunSpec]) -> dict[str, dict[str, Any]]:
    """Of each run, the values that are not the same in all of them, by dotted path."""
    flat = {run: _flatten(spec.model_dump(mode="json", exclude=_NOT_VARIED)) for run, spec in specs.items()}
    paths = {path: None for values in flat.values() for path in values}
    varying = [path for path in paths if len({_identity(values.get(path)) for values in flat.values()}) > 1]
    return {run: {path: values[path] for path in varying if path in values} for run, values in flat.items()}


def fold(
    specs: Mapping[str, RunSpec], by: list[str] | None = None, names: Mapping[str, str] | None = None
) -> list[Setting]:
    """Group runs by all that varies but the seed, or by the given keys alone (`algo`, `config.extras.x`).

    A setting is labelled with its values, or with the name of its runs if the values are too many to read.
    """
    flat = {run: _flatten(spec.model_dump(mode="json", exclude=_NOT_VARIED)) for run, spec in specs.items()}
    if by:
        known = sorted({path for values in flat.values() for path in values})
        paths = [_path(key, known) for key in by]
    else:
        varying = {path: None for values in parameters(specs).values() for path in values}
        paths = [path for path in varying if path not in _FOLDED and not path.startswith(_NOT_A_SETTING)]
    named = labels(paths)
    settings: dict[str, Setting] = {}
    for run, values in flat.items():
        own = {path: values.get(path) for path in paths}
        given = [f"{named[path]}={_text(value)}" for path, value in own.items() if value is not None]
        label = " ".join(given) or specs[run].worker
        settings.setdefault(_identity(own), Setting(own, label)).runs.append(run)
    found = list(settings.values())
    if names is not None and any(len(each.label) > _LONGEST_LABEL for each in found):
        _label_by_name(found, names)
    return found


def _label_by_name(settings: list[Setting], names: Mapping[str, str]) -> None:
    """Label each setting with the name of its runs, without the seed, if no two would be called alike."""
    bases = [{_SEED.sub("", names[run]) for run in each.runs} for each in settings]
    if len(set().union(*bases)) == len(settings):
        for setting, (base,) in zip(settings, bases, strict=True):
            setting.label = base


def _path(key: str, known: list[str]) -> str:
    """The dotted path that a key means: itself, or the only path that ends with it."""
    ends = [path for path in known if path == key or path.endswith(f".{key}")]
    exact = [path for path in ends if path in {key, f"config.{key}"}]
    if len(exact or ends) == 1:
        return (exact or ends)[0]
    if not ends:
        raise KeyError(key)
    return min(ends, key=len)


def _identity(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def _text(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value)


def _flatten(document: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, dict):
            flat |= _flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
