"""The error of settings that cannot be used."""

from __future__ import annotations

__all__ = ["SettingsError"]


class SettingsError(Exception):
    """A setting that is unknown or has a bad value; the message says where it was given and what is allowed."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
