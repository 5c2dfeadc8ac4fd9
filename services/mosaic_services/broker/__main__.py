"""Run the broker: `python -m mosaic_services.broker --home DIR [--bus ADDRESS]`."""

from __future__ import annotations

import asyncio
import sys

from mosaic_bus.broker import Broker
from mosaic_bus.service import Service, serve
from mosaic_services.arguments import service_arguments, settings_of
from mosaic_services.home import StackHome


class BrokerService(Service):
    """Answers `ping`, `info` and `stats` for the broker that runs in the same process."""

    def __init__(self, home: StackHome, bus_address: str | None, heartbeat_s: float) -> None:
        home.create()
        # First of all: a second broker must not count as a start.
        self.lock = home.lock("broker")
        super().__init__("broker", home, bus_address, heartbeat_s=heartbeat_s)
        self.broker = Broker(self.bus.address, self.epoch)
        self.broker.start()

    async def start(self) -> None:
        """Watch the forwarding thread."""
        self.spawn(self._watch(), "watch")

    async def _watch(self) -> None:
        while self.broker.failure is None:
            await asyncio.sleep(0.2)
        raise self.broker.failure

    def counters(self) -> dict[str, int | float]:
        """What went through the broker."""
        # Copied in one step: the forwarding thread may add a counter at any moment.
        counted = dict(self.broker.counters)
        forwarded: dict[str, int | float] = {f"forward_{name}": count for name, count in counted.items()}
        return {**forwarded, "subscriptions": self.broker.subscriptions.total()}

    async def run(self) -> None:
        """Serve, then remove the sockets."""
        try:
            await super().run()
        finally:
            self.broker.stop()


def main() -> int:
    """Entry point."""
    parser = service_arguments("broker")
    settings = settings_of(parser, parser.parse_args())
    home = StackHome.find(settings.home)
    return serve(lambda: BrokerService(home, settings.bus, settings.services.heartbeat_s), "broker")


if __name__ == "__main__":
    sys.exit(main())
