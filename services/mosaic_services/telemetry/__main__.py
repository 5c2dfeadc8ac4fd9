"""Run the telemetry aggregator: `python -m mosaic_services.telemetry --home DIR [--bus ADDRESS]`."""

from __future__ import annotations

import sys

from mosaic_bus.service import serve
from mosaic_services.arguments import service_arguments
from mosaic_services.home import StackHome
from mosaic_services.telemetry.service import TelemetryService


def main() -> int:
    """Entry point."""
    arguments = service_arguments("telemetry").parse_args()
    home = StackHome.find(arguments.home)
    home.create()
    return serve(lambda: TelemetryService(home, arguments.bus), "telemetry")


if __name__ == "__main__":
    sys.exit(main())
