"""XuanCe through a real stack: each agent's returns, live frames, a resumed training, a checkpoint by reference."""

from __future__ import annotations

import json

import pytest
from mosaic_cli import Cli
from stack import Stack, wait_until
from xuance_runs import QUICK, SPREAD, named

from mosaic_bus.commands import Episodes, Metrics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

VDN = {**SPREAD, "algorithm": "vdn", "env": "mpe", "overrides": QUICK}
FRAMES = {"fastlane_video_mode": "single", "fastlane_max_dim": 120}
AGENTS = {"agent_0", "agent_1", "agent_2"}
ROOM = {"cpus": 1, "memory_mb": 2048}
PATIENCE_S = 800


def ended(stack, run):
    state = stack.wait_final(run, PATIENCE_S)
    assert state.state == "succeeded", state.reason
    return stack.wait_stored(run)


def test_a_training_is_watched_resumed_and_evaluated(tmp_path):
    with Stack(tmp_path / "home", environ={"MOSAIC_WORKERS": ""}) as stack:
        config = {**VDN, "running_steps": 1_000_000, **FRAMES}
        run = stack.submit(worker="xuance", name="spread", config=config, resources=ROOM, grace_s=60)
        frames = stack.bus.frames(run, timeout=PATIENCE_S)
        first, second = next(frames), next(frames)
        height, width, channels = first.pixels.shape
        assert (height, channels) == (width, 3)
        assert 60 < height <= 120
        assert second.number > first.number
        assert second.pixels.std() > 0
        wait_until("episodes are stored", lambda: (stored := stack.summary(run)) and stored.episodes > 8, PATIENCE_S)
        stack.cancel(run)
        assert stack.wait_final(run, PATIENCE_S).state == "cancelled"
        summary = stack.wait_stored(run)
        assert set(summary.agents) == AGENTS
        assert set(stack.bus.request("telemetry", Metrics(run=run)).agents) == AGENTS
        rows = stack.bus.request("telemetry", Episodes(run=run, agent="agent_0", limit=10_000)).rows
        assert len(rows) == summary.episodes > 0

        # From the checkpoint that the cancelled run saved.
        cli = Cli(stack.home.path)
        cli("resume", "spread", "--steps", "400", "--wait", timeout=PATIENCE_S)
        detail = cli.json("show", "spread-resumed")
        events = [json.loads(line) for line in cli.journal(detail["run"]["run"])]
        (loaded,) = named(events, "checkpoint_loaded")
        assert events[-1]["summary"]["steps"] == loaded["step"] + 400
        assert events[-1]["summary"]["updates"] > 0
        assert named(events, "episode")[0]["step"] > loaded["step"]

        config = {"mode": "policy_eval", "policy_path": "run:spread-resumed@last", "eval_episodes": 3, "seed": 1000}
        judged = ended(stack, stack.submit(worker="xuance", config=config, resources=ROOM))
        assert (judged.episodes, set(judged.agents)) == (3, AGENTS)


def test_workers_check_passes(tmp_path):
    report = json.loads(Cli(tmp_path / "home")("workers", "check", "xuance", "--json", timeout=PATIENCE_S).stdout)
    # Its example plays with 18 numbers and 5 actions, the suite's agent with 4 and 2.
    assert {check["id"]: check["status"] for check in report["checks"] if check["status"] != "pass"} == {
        "interactive-agent": "skip",
        "interactive-lanes": "skip",
    }
