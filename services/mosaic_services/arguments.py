"""Command-line arguments that all services share."""

from __future__ import annotations

import argparse

__all__ = ["service_arguments"]


def service_arguments(service: str) -> argparse.ArgumentParser:
    """Make the parser of a service: where its home is and where the bus is."""
    parser = argparse.ArgumentParser(prog=f"python -m mosaic_services.{service}")
    parser.add_argument("--home", help="folder of the stack (default: $MOSAIC_HOME or ~/.mosaic)")
    parser.add_argument("--bus", help="address of the bus (default: $MOSAIC_BUS, else the ipc sockets of the home)")
    return parser
