"""Settings of a stack: one typed model, read from a file, the environment and flags."""

from mosaic_services.settings.errors import SettingsError
from mosaic_services.settings.model import Settings

__all__ = ["Settings", "SettingsError"]
