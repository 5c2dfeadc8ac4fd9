"""Run the telemetry aggregator: `python -m mosaic_services.telemetry --home DIR [--bus ADDRESS]`."""

from __future__ import annotations

import gc
import sys

from mosaic_bus.home import Home
from mosaic_bus.service import serve
from mosaic_services.arguments import service_arguments
from mosaic_services.telemetry.service import TelemetryService


def main() -> int:
    """Entry point."""
    arguments = service_arguments("telemetry").parse_args()
    home = Home.find(arguments.home)
    home.create()
    # A batch is thousands of small dicts that die together: with the usual thresholds the collector looks at them
    # again and again, a quarter of the time it takes to parse them.
    gc.freeze()
    gc.set_threshold(100_000, 20, 100)
    return serve(lambda: TelemetryService(home, arguments.bus), "telemetry")


if __name__ == "__main__":
    sys.exit(main())
