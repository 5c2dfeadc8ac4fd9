"""Errors of experiments."""

from __future__ import annotations

__all__ = ["ExperimentError", "FolderError"]


class ExperimentError(Exception):
    """An experiment that cannot be played as it is written. `field` says where in the file."""

    def __init__(self, message: str, hint: str = "", field: tuple[str | int, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.field = field


class FolderError(Exception):
    """The folder of an experiment cannot be read."""
