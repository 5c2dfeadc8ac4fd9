"""Run the scheduler: `python -m mosaic_services.scheduler --home DIR [--bus ADDRESS] [--lost-after SECONDS]`."""

from __future__ import annotations

import sys

from mosaic_bus.service import serve
from mosaic_services.arguments import service_arguments
from mosaic_services.home import StackHome
from mosaic_services.scheduler.machine import DEFAULT_LOST_AFTER_S
from mosaic_services.scheduler.service import SchedulerService


def main() -> int:
    """Entry point."""
    parser = service_arguments("scheduler")
    parser.add_argument(
        "--lost-after",
        type=float,
        default=DEFAULT_LOST_AFTER_S,
        metavar="SECONDS",
        help="give up runs on a host that has been silent for so long (default: %(default)g)",
    )
    arguments = parser.parse_args()
    home = StackHome.find(arguments.home)
    return serve(lambda: SchedulerService(home, arguments.bus, arguments.lost_after), "scheduler")


if __name__ == "__main__":
    sys.exit(main())
