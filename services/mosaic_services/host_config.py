"""What a host offers to runs: read from a YAML file and from command-line options."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, Field, ValidationError, field_validator

from mosaic_bus import topics
from mosaic_bus.messages import Gpu, Model, Resources
from mosaic_bus.refusals import explain
from mosaic_bus.wording import did_you_mean
from mosaic_services.specs import SpecError, locate, read_file

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["HostConfig", "HostConfigError"]

_TAG = re.compile(r"[a-z0-9][a-z0-9._:-]{0,62}")
_MOST_GPUS = 1024
_GPUS = f"give a number from 0 to {_MOST_GPUS}, or a list of {{id, name, memory_mb}}"


class HostConfigError(Exception):
    """An invalid host description; the message names the field, the value and what is allowed."""


class _DeclaredGpu(Gpu):
    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(default="", max_length=120)
    memory_mb: int = Field(default=0, ge=0)

    @field_validator("id", mode="before")
    @classmethod
    def _number_as_text(cls, value: object) -> object:
        return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class HostConfig(Model):
    """What a host offers. Fields that are not given are detected on the machine."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str | None = None
    cpus: float | None = Field(default=None, strict=True, gt=0, le=4096)
    memory_mb: int | None = Field(default=None, strict=True, gt=0, le=64 * 1024 * 1024)
    gpus: int | tuple[Gpu, ...] | None = None
    tags: tuple[str, ...] = Field(default=(), max_length=100)

    @field_validator("host")
    @classmethod
    def _usable_name(cls, value: str | None) -> str | None:
        if value is not None and not topics.is_host_name(value):
            raise ValueError("use lower-case letters, digits and dashes, at most 63")
        return value

    @field_validator("gpus", mode="plain")
    @classmethod
    def _number_or_list(cls, value: object) -> int | tuple[Gpu, ...] | None:
        if value is None or (type(value) is int and 0 <= value <= _MOST_GPUS):
            return value
        if not isinstance(value, list | tuple) or len(value) > _MOST_GPUS:
            raise ValueError(_GPUS)
        try:
            found = tuple(Gpu(**_DeclaredGpu.model_validate(each).model_dump()) for each in value)
        except ValidationError as error:
            raise ValueError(f"{explain(error)} ({_GPUS})") from None
        ids = [each.id for each in found]
        if len(set(ids)) < len(ids):
            raise ValueError(f"each GPU may be listed once, these are {', '.join(ids)}")
        return found

    @field_validator("tags")
    @classmethod
    def _usable_tags(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for tag in value:
            if not _TAG.fullmatch(tag):
                raise ValueError(f"tag {tag!r}: use lower-case letters, digits and . _ : - (at most 63)")
            if tag.startswith("host:"):
                raise ValueError(f"tag {tag!r}: host:NAME is set automatically")
        return value

    @classmethod
    def make(cls, fields: dict[str, Any], where: str) -> HostConfig:
        """Validate fields; `where` names their source in errors."""
        for name in fields:
            if name not in cls.model_fields:
                hint = did_you_mean(name, cls.model_fields) or f"the fields are: {', '.join(cls.model_fields)}"
                raise HostConfigError(f"{locate(where, [name])}: field {name!r} is unknown; {hint}")
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            at = locate(where, error.errors()[0]["loc"])
            raise HostConfigError(f"{at}: {explain(error)}") from None

    @classmethod
    def read(cls, path: Path) -> HostConfig:
        """Read a YAML or JSON file."""
        try:
            return cls.make(read_file(path, "host"), str(path))
        except SpecError as error:
            raise HostConfigError(error.message) from None

    def replaced_by(self, fields: dict[str, Any], where: str) -> HostConfig:
        """Return a copy in which fields are replaced; None and empty lists leave a field as it is."""
        said = {name: value for name, value in fields.items() if value is not None and value != []}
        return self.model_copy(update={name: getattr(self.make(said, where), name) for name in said})

    def total(self, machine: Resources, gpus: int) -> Resources:
        """Resources that all runs together may use on a machine with these resources."""
        return Resources(cpus=self.cpus or machine.cpus, memory_mb=self.memory_mb or machine.memory_mb, gpus=gpus)
