"""Experiments of tests: begun, waited for, and read."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any

from stack import wait_until

from mosaic_bus import CommandRefusedError
from mosaic_bus.commands import ShowExperiment, StartExperiment

if TYPE_CHECKING:
    from stack import Stack

    from mosaic_bus.messages import ExperimentState

BASELINES = {name: {"worker": "baseline", "behavior": name} for name in ("random", "passive")}
PPO = {"algo": "ppo", "total_timesteps": 1024, "seed": 1, "extras": {"algo_params": {"num_steps": 128}}}
MINIGRID = PPO | {"env_id": "MiniGrid-Empty-5x5-v0"}
ROOM = {"cpus": 1, "memory_mb": 1500}


def start(stack: Stack, name: str, shards: int = 2, **fields: Any) -> ExperimentState:
    document = {"name": name, "operators": BASELINES, "episodes": 4, **fields}
    return stack.bus.request("operator", StartExperiment(experiment=document, shards=shards), timeout=60)


def show(stack: Stack, name: str) -> ExperimentState:
    return stack.bus.request("operator", ShowExperiment(experiment=name), timeout=60)


def finish(stack: Stack, name: str, state: str = "finished") -> list[dict[str, Any]]:
    """Wait for an experiment; return its records."""
    ended = wait_until(f"{name} ends", lambda: (found := show(stack, name)).state.final and found, 800)
    assert ended.state == state, ended
    return [json.loads(line) for line in lines(stack, name)]


def lines(stack: Stack, name: str) -> list[str]:
    return (stack.home.experiments / name / "episodes.jsonl").read_text().splitlines()


def train(stack: Stack, worker: str, name: str, config: dict[str, Any]) -> None:
    """Train a small policy, unless one of that name is there."""
    with contextlib.suppress(CommandRefusedError):
        if stack.state(name).state == "succeeded":
            return
    run = stack.submit(worker=worker, name=name, config=config, resources=ROOM)
    state = stack.wait_final(run, 800)
    assert state.state == "succeeded", state.reason
    stack.wait_stored(run)
