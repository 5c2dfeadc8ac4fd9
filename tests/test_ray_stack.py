"""RLlib through a real stack: returns of each agent, frames of an env runner, a cancel that leaves nothing of Ray."""

from __future__ import annotations

import json
import os
from pathlib import Path

import psutil
import pytest
from frame_runs import wait_for_frames
from mosaic_cli import Cli
from stack import Stack, wait_until

from mosaic_bus.commands import Cancel, Episodes, Metrics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SPREAD = {
    "algorithm": "PPO",
    "env_id": "simple_spread_v3",
    "num_workers": 1,
    "num_cpus": 0.5,
    "seed": 1,
    "network": {"fcnet_hiddens": [16]},
    "algo_params": {"train_batch_size_per_learner": 200, "minibatch_size": 100, "num_epochs": 1},
}
ROOM = {"cpus": 1, "memory_mb": 2048}


def rays(run: str) -> list[psutil.Process]:
    """Processes of a run's Ray: their command lines or working folders name the run."""
    found = []
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline())
            if "ray" in words and (run in words or run in process.cwd()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def named(stack: Stack, run: str, event: str) -> list[dict]:
    """Events of a run's journal."""
    journal = (stack.home.runs / run / "1" / "journal.jsonl").read_text()
    found = [json.loads(line) for line in journal.splitlines(keepends=True) if line.endswith("\n")]
    return [each for each in found if each["event"] == event]


def said(stack: Stack, run: str, words: str) -> list[str]:
    """Messages of a run that contain some words."""
    return [each["message"] for each in named(stack, run, "log") if words in each["message"]]


def test_training_reports_each_agent_shows_frames_pauses_and_a_cancel_leaves_nothing(tmp_path):
    with Stack(tmp_path / "home", environ={"MOSAIC_WORKERS": ""}) as stack:
        run = stack.submit(
            worker="ray",
            name="spread",
            config={**SPREAD, "total_timesteps": 400, "record": "every=5"},
            resources=ROOM,
        )
        state = stack.wait_final(run, 800)
        assert state.state == "succeeded", state.reason
        summary = stack.wait_stored(run)
        assert set(summary.agents) == {"agent_0", "agent_1", "agent_2"}
        assert set(stack.bus.request("telemetry", Metrics(run=run)).agents) >= set(summary.agents)
        one = stack.bus.request("telemetry", Episodes(run=run, agent="agent_0")).rows
        assert len(one) == summary.episodes >= 16
        (warning,) = said(stack, run, "has reserved")
        assert "reserved 1 CPUs, and may use 1.5" in warning

        config = {"mode": "resume_training", "checkpoint_path": "run:spread@last", "num_workers": 1, "num_cpus": 0.5}
        endless = {"total_timesteps": 10**9, "fastlane_video_mode": "single"}
        watched = stack.submit(worker="ray", config={**config, **endless}, resources=ROOM, grace_s=60)
        stream = wait_for_frames(stack, watched)
        assert stream.newest.shape[2] == 3
        assert rays(watched)
        wait_until("it trains", lambda: named(stack, watched, "scalars"), 400)
        cli = Cli(stack.home.path)
        cli("pause", watched, timeout=200)
        wait_until("it is paused", lambda: said(stack, watched, "paused"), 400)
        cli("unpause", watched, timeout=200)
        wait_until("it goes on", lambda: said(stack, watched, "continued"), 400)
        stack.bus.request("scheduler", Cancel(run=watched))
        state = stack.wait_final(watched, 800)
        assert state.state == "cancelled", state.reason
        wait_until("nothing of Ray is left", lambda: not rays(watched))
        folder = stack.home.runs / watched / "1"
        assert not (folder / "ray").exists()
        assert list((folder / "checkpoints").glob("step-*/mosaic.json"))
        links = Path(f"/tmp/mosaic-{os.getuid()}").glob("ray-*")
        assert not [link for link in links if watched in str(link.readlink())]
