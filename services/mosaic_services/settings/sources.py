"""Reads settings: defaults, then a file, then `MOSAIC_*` variables, then flags; each wins over those before it."""

from __future__ import annotations

import difflib
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError
from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict
from pydantic_settings import SettingsError as UnreadableError

from mosaic_bus.refusals import explain
from mosaic_bus.wording import near_names
from mosaic_services.settings.errors import SettingsError
from mosaic_services.settings.model import Settings, leaves

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FILE_NAME", "Loaded", "load", "variable"]

_PREFIX = "MOSAIC_"
_NESTED = "__"
_FILE_VARIABLE = "MOSAIC_CONFIG"
FILE_NAME = "mosaic.toml"
_DEFAULTS = {leaf.key: leaf.value for leaf in leaves(Settings())}
_FLAG = "flag"
# Similarity from which a variable counts as mistyped: workers have MOSAIC_* variables of their own.
_MISTYPED = 0.9


class _FromEnvironment(Settings, BaseSettings):
    """The model as pydantic-settings reads it from the environment."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX, env_nested_delimiter=_NESTED, env_ignore_empty=True)


@dataclass(frozen=True)
class Loaded:
    """Settings, and where each value came from: `default`, `file …`, a variable or `flag`."""

    settings: Settings
    origins: dict[str, str]
    file: Path

    def export(self) -> None:
        """Set the variables that child processes and the library of environments read.

        These are cache, workers and pythonpath, and what was given as a flag. Home and bus have arguments instead.
        """
        for leaf in leaves(self.settings):
            given = self.origins[leaf.key] == _FLAG or leaf.key in {"cache", "workers", "pythonpath"}
            if given and leaf.value and leaf.key not in {"home", "bus"}:
                os.environ[variable(leaf.key)] = str(leaf.value)


def variable(key: str) -> str:
    """The environment variable of a setting: `MOSAIC_SCHEDULER__LOST_AFTER_S` for `scheduler.lost_after_s`."""
    return _PREFIX + key.upper().replace(".", _NESTED)


def load(flags: Mapping[str, object] | None = None) -> Loaded:
    """Read all settings. `flags` maps keys such as `home` or `scheduler.lost_after_s` to values; None is not given."""
    _refuse_mistyped_variables()
    from_flags = {key: value for key, value in (flags or {}).items() if value is not None}
    try:
        from_environment = _flat(EnvSettingsSource(_FromEnvironment)())
    except UnreadableError as error:  # a section as a whole is given, and is not JSON
        raise SettingsError(str(error), f"give one setting: {variable('scheduler.lost_after_s')}=60") from None
    home = from_flags.get("home") or from_environment.get("home") or _DEFAULTS["home"]
    given = os.environ.get(_FILE_VARIABLE)
    file = Path(given or Path(str(home)) / FILE_NAME).expanduser().absolute()
    from_file = _read(file, required=bool(given))
    if "home" in from_file and not given:
        raise SettingsError(f"{file}: home cannot be set in a file of the home itself", f"set {variable('home')}")
    values: dict[str, object] = {}
    origins = dict.fromkeys(_DEFAULTS, "default")
    for source, origin in ((from_file, f"file {file}"), (from_environment, ""), (from_flags, _FLAG)):
        for key, value in source.items():
            _require_known(key, origin or variable(key))
            values[key] = value
            origins[key] = origin or variable(key)
    try:
        settings = Settings.model_validate(_nested(values))
    except ValidationError as error:
        key = ".".join(map(str, error.errors()[0]["loc"]))
        raise SettingsError(f"{origins.get(key, file)}: {explain(error)}", "see: mosaic config show") from None
    return Loaded(settings, origins, file)


def _read(file: Path, *, required: bool) -> dict[str, Any]:
    try:
        return _flat(tomllib.loads(file.read_text(encoding="utf-8")))
    except (FileNotFoundError, NotADirectoryError):
        if required:
            raise SettingsError(f"{file}: no such file", f"{_FILE_VARIABLE} names it") from None
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{file}: {getattr(error, 'strerror', None) or 'not a text file'}") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{file}: not TOML: {error}", "an example: configs/mosaic.toml") from None


def _flat(document: Mapping[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in document.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{key}": inner for key, inner in value.items()}
        else:
            flat[name] = value
    return flat


def _nested(flat: Mapping[str, object]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for key, value in flat.items():
        section, _, name = key.rpartition(".")
        (document.setdefault(section, {}) if section else document)[name] = value
    return document


def _require_known(key: str, where: str) -> None:
    if key in _DEFAULTS:
        return
    section = f"{key.partition('.')[0]}."
    near = near_names(key, _DEFAULTS, 2)
    near = near or [each for each in _DEFAULTS if each.endswith(f".{key}")]
    near = near or [each for each in _DEFAULTS if each.startswith(section)]
    hint = f"did you mean {' or '.join(near)}?" if near else "see: mosaic config show"
    raise SettingsError(f"{where}: setting {key!r} is unknown", hint)


def _refuse_mistyped_variables() -> None:
    known = {_FILE_VARIABLE, *map(variable, _DEFAULTS)}
    sections = tuple({name.partition(_NESTED)[0] + _NESTED for name in known if _NESTED in name})
    for name in os.environ:
        if not name.startswith(_PREFIX) or name in known or name.startswith(sections):
            continue  # the model refuses an unknown name in a section
        near = difflib.get_close_matches(name, known, n=1, cutoff=_MISTYPED)
        if near or _NESTED in name:
            hint = f"did you mean {near[0]}?" if near else "see: mosaic config show"
            raise SettingsError(f"variable {name} is not a setting", hint)
