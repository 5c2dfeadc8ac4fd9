"""A user's own environments: modules in folders that `MOSAIC_PYTHONPATH` names reach the workers."""

from __future__ import annotations

import pytest
from stack import Stack

CORRIDOR = """
import gymnasium

class Corridor(gymnasium.Env):
    observation_space = gymnasium.spaces.Discrete(4)
    action_space = gymnasium.spaces.Discrete(1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return self.at, {}

    def step(self, action):
        self.at += 1
        return self.at, 1.0, self.at == 3, False, {}

gymnasium.register("Corridor-v0", Corridor)
"""


@pytest.mark.slow
def test_environment_of_the_users_own_module_is_found_and_only_where_it_was_named(tmp_path, workers):
    folder = tmp_path / "my envs"
    folder.mkdir()
    (folder / "my_corridor.py").write_text(CORRIDOR)
    # A module of the same name as one of the worker's is not taken for it.
    (folder / "baseline_worker.py").write_text("raise ImportError('this is not the worker')")
    spec = {"worker": "baseline", "config": {"env_id": "my_corridor:Corridor-v0", "episodes": 2}}
    with Stack(tmp_path / "home", environ={"MOSAIC_PYTHONPATH": str(folder)}) as stack:
        run = stack.submit(**spec)
        assert stack.wait_final(run).state == "succeeded"
        summary = stack.wait_stored(run)
        assert (summary.episodes, summary.return_mean) == (2, 3.0)
    assert stack.leftovers() == []
    with Stack(tmp_path / "other") as stack:
        state = stack.wait_final(stack.submit(**spec))
        assert state.state == "failed"
        assert "my_corridor" in state.reason
    assert stack.leftovers() == []
