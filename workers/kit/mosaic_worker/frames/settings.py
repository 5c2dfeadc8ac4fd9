"""Settings of frames, live (FastLane) and as videos of episodes, from a config or from environment variables."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from mosaic_worker.config import WorkerConfig, describe
from mosaic_worker.errors import ConfigError

__all__ = ["FastLaneSettings", "FrameConfig", "FrameFields", "LiveFrameFields", "RecordSettings"]

RECORD = "MOSAIC_RECORD"
_VARIABLES = {
    "mode": "MOSAIC_FASTLANE_MODE",
    "slot": "MOSAIC_FASTLANE_SLOT",
    "grid_limit": "MOSAIC_FASTLANE_GRID_LIMIT",
    "interval_ms": "MOSAIC_FASTLANE_INTERVAL_MS",
    "max_dim": "MOSAIC_FASTLANE_MAX_DIM",
}
"""Each setting and the variable that gives it."""

Mode = Literal["single", "grid", "off"]
Slot = Annotated[int, Field(ge=0)]
GridLimit = Annotated[int, Field(ge=1, le=64)]
IntervalMs = Annotated[int, Field(ge=1, le=60_000)]
MaxDim = Annotated[int, Field(ge=16, le=4096)]


class FastLaneSettings(BaseModel):
    """Which environments of a run show live frames, how often, and how large."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mode: Mode = "off"
    slot: Slot = 0
    grid_limit: GridLimit = 4
    interval_ms: IntervalMs = 33
    max_dim: MaxDim = 640

    @classmethod
    def from_environ(cls, environ: Mapping[str, str], **given: Any) -> "FastLaneSettings":
        """Read the settings from variables; `given` overrides them. ConfigError names a bad variable."""
        values = {
            field: environ[name] for field, name in _VARIABLES.items() if field not in given and environ.get(name)
        }
        try:
            return cls.model_validate({**values, **given})
        except ValidationError as error:
            problems = [
                {**problem, "loc": (_VARIABLES[field] if (field := str(problem["loc"][0])) in values else field,)}
                for problem in error.errors()
            ]
            raise ConfigError([describe(cls, problem) for problem in problems]) from error


@dataclass(frozen=True)
class RecordSettings:
    """Which episodes become videos, and their limits: at most `max_frames` frames are held in memory."""

    every: int | None = None
    best: bool = False
    worst: bool = False
    max_dim: int = 256
    max_frames: int = 256

    @property
    def is_on(self) -> bool:
        """Whether any episode is wanted."""
        return self.every is not None or self.best or self.worst

    def __str__(self) -> str:
        words = (f"every={self.every}" if self.every else "", "best" * self.best, "worst" * self.worst)
        return ",".join(word for word in words if word)

    @classmethod
    def parse(cls, text: str) -> "RecordSettings":
        """Parse a text such as `every=50,best`; empty means none. ValueError lists the valid words."""
        every: int | None = None
        words = [word.strip() for word in text.split(",") if word.strip()]
        for word in words:
            name, _, count = word.partition("=")
            if name == "every" and count.isdecimal() and int(count) > 0:
                every = int(count)
            elif word not in {"best", "worst"}:
                raise ValueError(f"{word!r} is none of every=N (N from 1), best, worst; several are joined by commas")
        return cls(every=every, best="best" in words, worst="worst" in words)

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "RecordSettings":
        """Read MOSAIC_RECORD; ConfigError if it is invalid."""
        text = environ.get(RECORD, "")
        try:
            return cls.parse(text)
        except ValueError as error:
            raise ConfigError(f"{RECORD}: {text!r} is not allowed: {error}") from error


class LiveFrameFields(BaseModel):
    """The config fields for live frames; mix them into any part of a config."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    fastlane_video_mode: Mode = Field(
        default="off", description="Live frames: of one environment (single), of several tiled (grid), or none (off)"
    )
    fastlane_slot: Slot = Field(default=0, description="The environment that is shown in mode single, and recorded")
    fastlane_grid_limit: GridLimit = Field(default=4, description="Number of environments in mode grid")
    fastlane_interval_ms: IntervalMs = Field(default=33, description="Minimum milliseconds between two frames")
    fastlane_max_dim: MaxDim = Field(
        default=640, description="Maximum side of a frame in pixels; larger frames are shrunk"
    )

    def fastlane_settings(self, environ: Mapping[str, str]) -> FastLaneSettings:
        """Return the config's settings; a field that the config omits is read from its variable."""
        fields = {name: f"fastlane_{'video_' if name == 'mode' else ''}{name}" for name in _VARIABLES}
        given = {name: getattr(self, field) for name, field in fields.items() if field in self.model_fields_set}
        return FastLaneSettings.from_environ(environ, **given)


class FrameFields(LiveFrameFields):
    """The config fields for live frames and videos."""

    record: str = Field(
        default="", description="Episodes to keep as videos: every=N, best, worst, or several joined by commas"
    )

    @field_validator("record")
    @classmethod
    def _record_is_known(cls, record: str) -> str:
        RecordSettings.parse(record)
        return record

    def frame_variables(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the settings as variables, for another process of the run."""
        settings = self.fastlane_settings(environ).model_dump()
        return {
            **{name: str(settings[field]) for field, name in _VARIABLES.items()},
            RECORD: str(self.record_settings(environ)),
        }

    def record_settings(self, environ: Mapping[str, str]) -> RecordSettings:
        """Return the config's setting, or else the variable's."""
        if "record" in self.model_fields_set:
            return RecordSettings.parse(self.record)
        return RecordSettings.from_environ(environ)


class FrameConfig(WorkerConfig, FrameFields):
    """A worker's config with these fields at the top level."""
