"""The table of services is complete, and each service has what its row says."""

from pathlib import Path

import mosaic_services
from mosaic_services.stack.services import SERVICES, bus_names, in_start_order

PACKAGE = Path(mosaic_services.__file__).parent


def test_table_has_every_package_that_serves():
    serving = {path.parent.name for path in PACKAGE.glob("*/__main__.py") if "serve(" in path.read_text()}
    assert serving == {row.name for row in SERVICES}


def test_each_service_starts_after_those_it_needs():
    order = [row.name for row in in_start_order(reversed(SERVICES))]
    assert order[0] == "broker"
    assert sorted(order) == sorted(row.name for row in SERVICES)
    for row in SERVICES:
        assert all(order.index(needed) < order.index(row.name) for needed in row.needs), row.name


def test_names_on_the_bus():
    once = ["broker", "scheduler", "telemetry", "operator", "gateway"]
    assert bus_names(["a", "b"]) == [*once, "supervisor.a", "supervisor.b"]
