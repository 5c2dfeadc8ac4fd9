"""Run the gateway: `python -m mosaic_services.gateway --home DIR [--bus ADDRESS]`."""

from __future__ import annotations

import sys

from mosaic_bus.service import serve
from mosaic_services.arguments import service_arguments, settings_of
from mosaic_services.gateway.service import GatewayService
from mosaic_services.home import StackHome


def main() -> int:
    """Entry point."""
    parser = service_arguments("gateway")
    settings = settings_of(parser, parser.parse_args())
    home = StackHome.find(settings.home)
    home.create()
    return serve(lambda: GatewayService(home, settings.bus, settings), "gateway")


if __name__ == "__main__":
    sys.exit(main())
