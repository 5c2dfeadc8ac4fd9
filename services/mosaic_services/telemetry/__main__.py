"""Run the telemetry aggregator: `python -m mosaic_services.telemetry --home DIR [--bus ADDRESS]`."""

from __future__ import annotations

import sys

from mosaic_bus.service import serve
from mosaic_services.arguments import service_arguments, settings_of
from mosaic_services.home import StackHome
from mosaic_services.telemetry.service import TelemetryService


def main() -> int:
    """Entry point."""
    parser = service_arguments("telemetry")
    settings = settings_of(parser, parser.parse_args())
    home = StackHome.find(settings.home)
    home.create()
    return serve(lambda: TelemetryService(home, settings.bus, settings), "telemetry")


if __name__ == "__main__":
    sys.exit(main())
