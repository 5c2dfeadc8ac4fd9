"""What every MOSAIC worker shares: config, events, signals, command line and a compliance suite.

Names are imported on first use, so that a process that needs only the emitter does not import pydantic.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from mosaic_worker.cli import run_worker
    from mosaic_worker.config import InputPath, WorkerConfig
    from mosaic_worker.context import Resume, RunContext
    from mosaic_worker.emitter import Emitter
    from mosaic_worker.errors import ConfigError, InfrastructureError, RunCancelled, WorkerError
    from mosaic_worker.frames.fastlane import FastLane
    from mosaic_worker.frames.settings import FrameConfig
    from mosaic_worker.interactive import InteractiveWorker, StepResult
    from mosaic_worker.manifest import Manifest
    from mosaic_worker.metadata import WorkerCapabilities, WorkerMetadata
    from mosaic_worker.spaces import space_from_json, space_to_json, value_from_json, values_from_json
    from mosaic_worker.stop import Stop

__all__ = [
    "ConfigError",
    "Emitter",
    "FastLane",
    "FrameConfig",
    "InfrastructureError",
    "InputPath",
    "InteractiveWorker",
    "Manifest",
    "Resume",
    "RunCancelled",
    "RunContext",
    "StepResult",
    "Stop",
    "WorkerCapabilities",
    "WorkerConfig",
    "WorkerError",
    "WorkerMetadata",
    "run_worker",
    "space_from_json",
    "space_to_json",
    "value_from_json",
    "values_from_json",
]

_HOME = {
    "ConfigError": "errors",
    "Emitter": "emitter",
    "FastLane": "frames.fastlane",
    "InfrastructureError": "errors",
    "InputPath": "config",
    "InteractiveWorker": "interactive",
    "Manifest": "manifest",
    "FrameConfig": "frames.settings",
    "Resume": "context",
    "RunCancelled": "errors",
    "RunContext": "context",
    "StepResult": "interactive",
    "Stop": "stop",
    "WorkerCapabilities": "metadata",
    "WorkerConfig": "config",
    "WorkerError": "errors",
    "WorkerMetadata": "metadata",
    "run_worker": "cli",
    "space_from_json": "spaces",
    "space_to_json": "spaces",
    "value_from_json": "spaces",
    "values_from_json": "spaces",
}


def __getattr__(name: str) -> Any:
    """Import a public name from the module it lives in."""
    try:
        module = _HOME[name]
    except KeyError:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    return getattr(import_module(f"{__name__}.{module}"), name)
