"""Run a supervisor: `python -m mosaic_services.supervisor --home DIR [--bus ADDRESS] [--host NAME]`."""

from __future__ import annotations

import re
import socket
import sys

from mosaic_bus import topics
from mosaic_bus.home import Home
from mosaic_bus.messages import Resources
from mosaic_bus.service import serve
from mosaic_services.arguments import service_arguments
from mosaic_services.supervisor.service import SupervisorService, default_total


def default_host() -> str:
    """This machine's name, as it can stand in a topic."""
    return re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().lower()).strip("-")[:63] or "local"


def main() -> int:
    """Entry point."""
    parser = service_arguments("supervisor")
    parser.add_argument("--host", default=default_host(), help="name of this host (default: %(default)s)")
    parser.add_argument("--cpus", type=float, help="CPU cores to offer (default: all)")
    parser.add_argument("--memory-mb", type=int, help="memory to offer, in MiB (default: all)")
    arguments = parser.parse_args()
    if not topics.is_host_name(arguments.host):
        parser.error(f"--host {arguments.host!r}: only a-z, 0-9 and - are allowed, at most 63 of them")
    for option, given in (("--cpus", arguments.cpus), ("--memory-mb", arguments.memory_mb)):
        if given is not None and given <= 0:
            parser.error(f"{option} {given}: a host offers more than nothing")
    machine = default_total()
    total = Resources(cpus=arguments.cpus or machine.cpus, memory_mb=arguments.memory_mb or machine.memory_mb)
    home = Home.find(arguments.home)
    home.create()
    return serve(lambda: SupervisorService(home, arguments.bus, arguments.host, total), "supervisor")


if __name__ == "__main__":
    sys.exit(main())
