"""Command-line arguments that all services share, and the settings that they are part of."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from mosaic_services.settings.errors import SettingsError
from mosaic_services.settings.sources import load

if TYPE_CHECKING:
    from mosaic_services.settings.model import Settings

__all__ = ["service_arguments", "settings_of"]


def service_arguments(service: str) -> argparse.ArgumentParser:
    """Make the parser of a service: where its home is and where the bus is."""
    parser = argparse.ArgumentParser(prog=f"python -m mosaic_services.{service}")
    parser.add_argument("--home", help="folder of the stack (default: $MOSAIC_HOME or ~/.mosaic)")
    parser.add_argument("--bus", help="address of the bus (default: $MOSAIC_BUS, else the ipc sockets of the home)")
    return parser


def settings_of(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> Settings:
    """Read the settings of this process once; exit with an error if they cannot be used."""
    try:
        loaded = load({"home": arguments.home, "bus": arguments.bus})
    except SettingsError as error:
        parser.error(f"{error.message}; {error.hint}" if error.hint else error.message)
    loaded.export()
    return loaded.settings
