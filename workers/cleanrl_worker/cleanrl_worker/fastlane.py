"""Pictures of upstream scripts: the run's config becomes variables, and the variables become the kit's lane."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # numpy and pydantic are not imported for a script that nobody watches
    from mosaic_worker.emitter import Emitter
    from mosaic_worker.frames.fastlane import FastLane
    from mosaic_worker.frames.settings import FrameFields, RecordSettings

__all__ = ["lane_from", "lane_variables"]

MODE, RECORD = "MOSAIC_FASTLANE_MODE", "MOSAIC_RECORD"


def lane_variables(fields: "FrameFields", environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that say what the config says; it counts more than what `environ` has."""
    settings = fields.fastlane_settings(environ)
    variables = {f"MOSAIC_FASTLANE_{name.upper()}": str(value) for name, value in settings.model_dump().items()}
    return {**variables, RECORD: _record_text(fields.record_settings(environ))}


def _record_text(record: "RecordSettings") -> str:
    every = [f"every={record.every}"] if record.every is not None else []
    return ",".join([*every, *(["best"] if record.best else []), *(["worst"] if record.worst else [])])


def lane_from(environ: Mapping[str, str], run_dir: Path, emitter: "Emitter") -> "FastLane | None":
    """Make the lane that the variables ask for, or None if they ask for no pictures."""
    if environ.get(MODE, "off") == "off" and not environ.get(RECORD):
        return None
    from mosaic_worker.frames.fastlane import FastLane  # noqa: PLC0415 - as above

    lane = FastLane.from_environ(environ, run_dir, emitter)
    return lane if lane.wants_frames else None
