"""XuanCe through a real stack: returns of each agent, and a checkpoint by reference."""

from __future__ import annotations

import pytest
from stack import Stack

from mosaic_bus.commands import Episodes, Metrics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

VDN = {"algorithm": "VDN", "env": "mpe", "env_id": "simple_spread_v3", "running_steps": 800, "parallels": 2, "seed": 1}
ROOM = {"cpus": 1, "memory_mb": 2048}


def test_training_reports_each_agent_and_its_checkpoint_is_evaluated_by_reference(tmp_path):
    with Stack(tmp_path / "home", environ={"MOSAIC_WORKERS": ""}) as stack:
        run = stack.submit(worker="xuance", name="spread", config=VDN, resources=ROOM)
        state = stack.wait_final(run, 800)
        assert state.state == "succeeded", state.reason
        summary = stack.wait_stored(run)
        assert set(summary.agents) == {"agent_0", "agent_1", "agent_2"}
        assert set(stack.bus.request("telemetry", Metrics(run=run)).agents) == set(summary.agents)
        one = stack.bus.request("telemetry", Episodes(run=run, agent="agent_0")).rows
        assert len(one) == summary.episodes > 10

        config = {"mode": "policy_eval", "policy_path": "run:spread@last", "eval_episodes": 3, "seed": 1000}
        judged = stack.submit(worker="xuance", config=config, resources=ROOM)
        state = stack.wait_final(judged, 800)
        assert state.state == "succeeded", state.reason
        assert stack.wait_stored(judged).episodes == 3
