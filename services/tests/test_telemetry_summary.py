"""Live aggregates: batches, speed, restarts, agents."""

from __future__ import annotations

import json
import math

import pytest

from mosaic_services.telemetry.columns import read_journal
from mosaic_services.telemetry.summary import Summary
from mosaic_services.telemetry.tally import AGENTS, CURVE_POINTS, Curve, Tally


def add(summary: Summary, *events: dict) -> None:
    summary.add(read_journal(b"".join(json.dumps(event).encode() + b"\n" for event in events)))


def test_summary_follows_the_journal():
    summary = Summary()
    add(
        summary,
        {"event": "run_started", "run_id": "r", "worker": "w", "task": "CartPole", "total_steps": 100, "ts": 1.0},
        {"event": "step", "step": 5, "reward": 1, "ts": 2.0},
        {"event": "step", "step": 3, "reward": 1, "ts": 3.0},
        {"event": "episode", "episode": 0, "return": 10, "ts": 4.0},
        {"event": "episode", "episode": 1, "return": 20, "ts": 5.0},
        {"event": "scalars", "step": 6, "values": {"loss": 0.5, "lr": "NaN"}, "ts": 6.0},
        {"event": "heartbeat", "ts": 7.0},
        {"event": "checkpoint_saved", "path": "/x/model.pt", "step": 9, "ts": 8.0},
        {"oops": 1},
        {"event": "run_completed", "ts": 9.0},
    )
    body = summary.message("run", 2, complete=True, received=9, repaired=1, missing=0)
    assert (body.run, body.attempt, body.task, body.events, body.step) == ("run", 2, "CartPole", 10, 9)
    assert (body.total_steps, body.episodes, body.return_last) == (100, 2, 20)
    assert (body.return_mean, body.return_std, body.returns) == (15, 5, [10, 20])
    assert body.scalars["loss"] == 0.5
    assert math.isnan(body.scalars["lr"])
    assert (body.malformed, body.last_event_at, body.last_heartbeat_at) == (1, 9.0, 7.0)
    assert (body.checkpoint, body.outcome, body.complete) == ("/x/model.pt", "run_completed", True)


def test_mean_is_over_the_last_hundred_episodes():
    summary = Summary()
    add(summary, *({"event": "episode", "episode": each, "return": each} for each in range(250)))
    body = summary.message("run", 1)
    assert body.return_mean == sum(range(150, 250)) / 100
    assert len(body.returns) <= CURVE_POINTS


def test_odd_returns_do_not_spoil_the_mean():
    summary = Summary()
    add(summary, *({"event": "episode", "episode": 1, "return": each} for each in (1, "NaN", None, "Infinity", 3)))
    body = summary.message("run", 1)
    assert (body.episodes, body.return_mean, body.return_last) == (5, 2, 3)


def test_curve_keeps_the_whole_run_in_few_points():
    curve = Curve()
    for value in range(10_000):
        curve.add(float(value))
    assert CURVE_POINTS // 2 <= len(curve.points) <= CURVE_POINTS
    assert curve.points == sorted(curve.points)
    assert curve.points[0] == (curve.stride - 1) / 2


def test_speed_is_that_of_the_receivers_clock():
    summary = Summary()
    for tick in range(60):
        add(summary, {"event": "step", "step": tick * 50, "ts": 0.0})
        summary.rate(tick * 0.5)
    assert summary.steps_per_s == pytest.approx(100, rel=0.01)
    for tick in range(60, 200):
        summary.rate(tick * 0.5)
    assert summary.steps_per_s == 0


def test_restart_goes_on_with_the_same_aggregates():
    events = [{"event": "episode", "episode": each, "return": each % 7, "step": each * 3} for each in range(300)]
    whole, before = Summary(), Summary()
    add(whole, *events)
    add(before, *events[:123])
    after = Summary.load(before.dump())
    add(after, *events[123:])
    assert after.dump() == whole.dump()


# ── agents ──────────────────────────────────────────────────────────────────────────────────────────


def episode(agent: str | None, number: int | None, value: float, **more: object) -> dict:
    return {"event": "episode", "episode": number, "return": value, "agent": agent, "step": 1, **more}


def test_returns_of_agents_that_report_apart_are_summed_up_for_each_episode():
    summary = Summary()
    # Two environments at once, so that episodes overlap.
    add(summary, episode("a", 1, 1.0), episode("a", 2, 10.0), episode("b", 1, 2.0), episode("b", 2, 20.0))
    body = summary.message("run", 1)
    assert (body.episodes, body.return_last, body.return_mean) == (2, 30, 16.5)
    assert {name: (each.episodes, each.return_last, each.return_mean) for name, each in body.agents.items()} == {
        "a": (2, 10, 5.5),
        "b": (2, 20, 11),
    }
    add(summary, episode("a", 3, 5.0))
    again = Summary.load(summary.dump())
    add(again, episode("b", 3, 1.0), episode("a", None, 7.0), episode("b", None, 8.0))
    assert (again.message("run", 1).episodes, list(again.tally.team.recent)) == (5, [3, 30, 6, 7, 8])


def test_episodes_without_an_agent_are_those_of_the_team():
    summary = Summary()
    add(summary, episode("a", 1, 1.0), episode("b", 1, 2.0), episode(None, 1, 50.0), episode("a", 2, 1.0))
    body = summary.message("run", 1)
    assert (body.episodes, body.return_mean, body.returns) == (1, 50, [50])
    assert body.agents["a"].episodes == 2
    add(summary, episode(None, 2, 9.0, returns={"a": 4.0, "b": "NaN"}))
    body = summary.message("run", 1)
    assert (body.episodes, body.return_last, body.agents["a"].return_last) == (2, 9, 4)
    assert (body.agents["b"].episodes, body.agents["b"].return_last, body.agents["b"].return_mean) == (2, None, 2)


def test_endless_agents_do_not_fill_the_summary():
    tally = Tally()
    for number in range(1000):
        tally.add(f"agent-{number}", 7, 1.0)
    assert (len(tally.by_agent()), tally.team.episodes, tally.team.last) == (AGENTS, 1, 1000)


def test_endless_scalar_names_do_not_fill_the_summary():
    summary = Summary()
    add(summary, *({"event": "scalars", "step": 1, "values": {f"name-{each}": 1}} for each in range(2000)))
    assert len(summary.scalars) == 256
