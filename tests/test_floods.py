"""A client that asks little is served while another one floods the stack."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from floods import FLOODS, ask, fill, flood, percentile, refused
from stack import Stack, wait_until

if TYPE_CHECKING:
    from mosaic_bus import Bus

REQUESTS = 60
SLOWER = 50
"""How many times the median of a quiet stack most answers may take: 5 as it is, thousands if queries queue."""
REFUSED_AS = {"summaries": "busy", "series": "busy", "runs": "busy", "subscriptions": "closed_subscribers"}


def wait_for_more(bus: Bus, counted: str) -> None:
    """Wait until more of a flood is refused."""
    before = refused(bus)[counted]
    wait_until(f"more {counted}", lambda: refused(bus)[counted] > before)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_flood_does_not_hold_up_another_client(tmp_path):
    stack = Stack(tmp_path / "home")
    runs = fill(stack.home, 100)
    with stack:
        ask(stack.bus, 10)
        quiet = percentile(ask(stack.bus, REQUESTS), 0.5)
        for kind in FLOODS:
            with flood(kind, stack.home, runs[0]):
                if (counted := REFUSED_AS.get(kind)) is not None:
                    wait_for_more(stack.bus, counted)
                took = ask(stack.bus, REQUESTS)
            most = percentile(took, 0.95)
            print(f"{kind}: {most:.0f} ms, quiet {quiet:.1f} ms")
            assert most < SLOWER * quiet, f"{kind}: {most:.0f} ms, and {quiet:.1f} ms on a quiet stack"
        for service, process in stack.processes.items():
            assert process.poll() is None, f"{service} ended:\n{stack.log(service)}"
    assert stack.leftovers() == []
