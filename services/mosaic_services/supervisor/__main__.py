"""Run a supervisor: `python -m mosaic_services.supervisor --home DIR [--bus ADDRESS] [--host NAME]`."""

from __future__ import annotations

import os
import re
import socket
import sys
from pathlib import Path

from mosaic_bus.logs import configure_logging
from mosaic_bus.service import serve
from mosaic_services.arguments import service_arguments, settings_of
from mosaic_services.home import StackHome
from mosaic_services.host_config import HostConfig, HostConfigError
from mosaic_services.supervisor.inventory import take_inventory
from mosaic_services.supervisor.service import SupervisorService


def default_host() -> str:
    """This machine's name, as it can stand in a topic."""
    return re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().lower()).strip("-")[:63] or "local"


def main() -> int:
    """Entry point."""
    parser = service_arguments("supervisor")
    parser.add_argument("--config", type=Path, help="YAML file with host, cpus, memory_mb, gpus and tags")
    parser.add_argument("--host", help=f"name of this host (default: {default_host()})")
    parser.add_argument("--cpus", type=float, help="CPU cores to offer (default: all)")
    parser.add_argument("--memory-mb", type=int, help="memory to offer, in MiB (default: all)")
    parser.add_argument("--gpus", type=int, metavar="N", help="how many GPUs to offer (default: those that NVML finds)")
    parser.add_argument("--tag", action="append", metavar="NAME", help="a tag that runs may require (repeatable)")
    arguments = parser.parse_args()
    settings = settings_of(parser, arguments)
    configure_logging("supervisor")
    said = {name: getattr(arguments, name) for name in ("host", "cpus", "memory_mb", "gpus")}
    try:
        config = HostConfig.read(arguments.config) if arguments.config else HostConfig()
        config = config.replaced_by({**said, "tags": arguments.tag}, "command line")
        inventory = take_inventory(config, default_host(), os.environ)
    except HostConfigError as error:
        parser.error(str(error))
    home = StackHome.find(settings.home)
    home.create()
    return serve(lambda: SupervisorService(home, settings.bus, inventory, settings), "supervisor")


if __name__ == "__main__":
    sys.exit(main())
