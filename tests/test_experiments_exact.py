"""The same games however an experiment is cut, on hosts that compute the same numbers."""

from __future__ import annotations

import subprocess
import sys

import pytest
from experiments import BASELINES, MINIGRID, PPO, finish, lines, show, start, train
from stack import Stack, wait_until

from mosaic_bus.commands import Hosts
from mosaic_services.home import StackHome

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

DDPG = {"algorithm": "DDPG", "env": "classic_control", "env_id": "Pendulum-v1", "running_steps": 400, "seed": 1}

WOBBLY = """
import os, gymnasium, numpy

class Wobbly(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-9, 9, (1,), numpy.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return numpy.zeros(1), {}

    def step(self, action):
        self.steps += 1
        return numpy.full(1, 1e-9 if "WOBBLE" in os.environ else 0.0), float(action), self.steps == 400, False, {}

gymnasium.register("Wobbly-v0", Wobbly)
"""


def test_exact_experiment_is_played_only_on_hosts_that_compute_the_same(arena, tmp_path):
    (tmp_path / "wobbly.py").write_text(WOBBLY)
    with Stack(tmp_path / "home", cpus=1, environ={"MOSAIC_PYTHONPATH": str(tmp_path)}) as stack:
        other = StackHome.find(tmp_path / "other")
        other.create()
        options = ["--home", other.path, "--bus", f"ipc://{stack.home.sockets}", "--host", "odd", "--cpus", "1"]
        with (tmp_path / "odd.log").open("wb") as log:
            odd = subprocess.Popen(
                [sys.executable, "-m", "mosaic_services.supervisor", *options],
                stdout=log,
                stderr=log,
                env={**stack.environ, "WOBBLE": "1"},
            )
        try:
            wait_until("two hosts", lambda: len(stack.bus.request("scheduler", Hosts()).hosts) == 2)
            fields = {"environment": {"id": "wobbly:Wobbly-v0"}, "operators": {"me": {"worker": "random"}}}
            start(stack, "exact", shards=4, **fields, episodes=400, lanes=1, exact=True)
            records = finish(stack, "exact")
            state = show(stack, "exact")
        finally:
            odd.terminate()
            assert odd.wait(60) is not None
    assert len(records) == 400
    assert len({record["numerics"]["environment"] for record in records}) == 1
    played = {each.host for each in state.shards if each.done}
    assert len(played) == 1
    assert f"host {({'odd', 'testhost'} - played).pop()} computes other numbers (environment)" in state.notes[0]
    assert stack.leftovers() == []


@pytest.mark.parametrize(
    ("worker", "name", "config", "environment", "pace"),
    [
        pytest.param("cleanrl", "ppo-cartpole", PPO | {"env_id": "CartPole-v1"}, {"id": "CartPole-v1"}, 40, id="mlp"),
        pytest.param("cleanrl", "ppo-minigrid", MINIGRID, {"id": "MiniGrid-Empty-5x5-v0"}, 80, id="cnn"),
        pytest.param("xuance", "ddpg-pendulum", DDPG, {"id": "Pendulum-v1", "max_steps": 100}, 80, id="continuous"),
    ],
)
def test_one_two_and_eight_shards_with_a_supervisor_killed_play_the_same_actions(
    arena, worker, name, config, environment, pace
):
    train(arena, worker, name, config)
    operators = {"trained": {"worker": worker, "checkpoint": f"run:{name}@last"}, **BASELINES}
    for shards in (1, 2, 8):
        experiment = f"{name}-in-{shards}"
        task = {"environment": environment, "operators": operators, "episodes": 16, "lanes": 4}
        if shards > 1:  # slow enough to be hit in the middle
            task["pacing"] = {"steps_per_second": pace}
        start(arena, experiment, shards=shards, **task)
        if shards > 1:
            wait_until("records come", lambda name=experiment: show(arena, name).done)
            arena.kill_and_restart("supervisor")
            assert not show(arena, experiment).state.final, "the supervisor was killed after the end"
            arena.wait_for("supervisor")
        records = finish(arena, experiment)
        assert len(records) == 3 * 16
        assert [each["failures"] for each in records if each["failures"]] == []
        assert all(each["action_hash"] for each in records)
        assert lines(arena, experiment) == lines(arena, f"{name}-in-1")
    assert len(show(arena, f"{name}-in-8").shards) == 8
