"""Run the scheduler: `python -m mosaic_services.scheduler --home DIR [--bus ADDRESS]`."""

from __future__ import annotations

import sys

from mosaic_bus.service import serve
from mosaic_services.arguments import service_arguments, settings_of
from mosaic_services.home import StackHome
from mosaic_services.scheduler.service import SchedulerService


def main() -> int:
    """Entry point."""
    parser = service_arguments("scheduler")
    settings = settings_of(parser, parser.parse_args())
    home = StackHome.find(settings.home)
    return serve(lambda: SchedulerService(home, settings.bus, settings), "scheduler")


if __name__ == "__main__":
    sys.exit(main())
