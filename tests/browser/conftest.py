"""A browser for all tests of a module, and a stack whose gateway keeps its port."""

from __future__ import annotations

import pytest
from chromium import chromium, dashboard, free_port, why_no_chromium
from stack import Stack


@pytest.fixture(scope="module")
def browser():
    if why := why_no_chromium():
        print(why)
        pytest.skip(why)
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def stack(tmp_path_factory, workers):
    environ = {"MOSAIC_GATEWAY__PORT": str(free_port())}
    with Stack(tmp_path_factory.mktemp("browser") / "home", cpus=16, also=("gateway",), environ=environ) as running:
        yield running
    assert running.leftovers() == []


@pytest.fixture
def board(browser, stack):
    """A logged-in page. The test fails on a console error, a violation of the policy, or a request that leaves."""
    with dashboard(browser, stack) as opened:
        yield opened
