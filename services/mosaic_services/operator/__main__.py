"""Run the operator service: `python -m mosaic_services.operator --home DIR [--bus ADDRESS]`."""

from __future__ import annotations

import sys

from mosaic_bus.service import serve
from mosaic_services.arguments import service_arguments, settings_of
from mosaic_services.home import StackHome
from mosaic_services.operator.service import OperatorService


def main() -> int:
    """Entry point."""
    parser = service_arguments("operator")
    settings = settings_of(parser, parser.parse_args())
    home = StackHome.find(settings.home)
    return serve(lambda: OperatorService(home, settings.bus, settings), "operator")


if __name__ == "__main__":
    sys.exit(main())
