"""Whatever is killed while a run trains, the page has the points of the store: no hole, none twice."""

from __future__ import annotations

import random

import pytest
from stack import wait_until

from mosaic_bus.commands import Series

TROUBLES = 50


@pytest.mark.slow
def test_fifty_kills_and_reloads_leave_no_hole_and_no_duplicate(stack, board):
    chance = random.Random(7)
    board.cut_off = True
    run = stack.submit(config={"events": 10**9, "rate": 40.0})
    stack.wait_state(run, "running")
    wait_until("events come", lambda: (found := stack.summary(run)) is not None and found.events > 10)
    # Every point by itself, so that each can be compared: a curve has at most 20,000.
    board.open(f"/run/{run}?metric=reward&points=20000")
    kinds = ["gateway"] * 8 + ["telemetry"] * 8 + ["connection"] * 18 + ["reload"] * 16
    chance.shuffle(kinds)
    assert len(kinds) == TROUBLES
    for kind in kinds:
        if kind == "connection":
            board.page.evaluate("() => mosaic.drop()")
        elif kind == "reload":
            board.page.reload()
        else:
            stack.kill_and_restart(kind)
            if kind == "gateway":  # a reload needs somebody who answers
                stack.wait_for(kind)
        board.page.wait_for_timeout(chance.uniform(0, 900))
    stack.cancel(run)
    stack.wait_final(run)
    lines = stack.wait_stored(run).events
    wait_until("the page is at the end", lambda: board.points(run, "reward")["position"] == [lines])
    stored = stack.bus.request("telemetry", Series(runs=[run], metrics=["reward"], max_points=100_000), timeout=60).only
    shown = board.points(run, "reward")
    assert len(stored.steps) > 500
    assert shown["steps"] == stored.steps, "a hole or a duplicate"
    assert set(shown["counts"]) == {1}
    assert shown["values"] == stored.values
