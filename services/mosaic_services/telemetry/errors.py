"""Every error of the telemetry aggregator."""

from __future__ import annotations

__all__ = ["StoreTooNewError", "TelemetryError"]


class TelemetryError(Exception):
    """Base of all errors raised here."""


class StoreTooNewError(TelemetryError):
    """The store was written by a newer version."""

    def __init__(self, path: str, found: int, known: int) -> None:
        super().__init__(f"{path} has layout {found}, this version knows up to {known}: update, or use another home")
