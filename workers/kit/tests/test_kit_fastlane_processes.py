"""Live frames of environments in subprocesses, as with AsyncVectorEnv; they never disturb training."""

import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("gymnasium", reason="gymnasium is in the workers' environments")

TRAINING = """
import functools, os, sys, threading
import gymnasium
import numpy as np
from mosaic_worker.frames import fastlane, watch
from mosaic_worker.emitter import Emitter

watch._ALONE_S = 0.2  # a test does not want to wait for seconds


class Painted(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"]}
    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(2)
    render_mode = "rgb_array"

    def __init__(self, index):
        self.index = index

    def reset(self, *, seed=None, options=None):
        return 0, {}

    def step(self, action):
        return 0, 1.0, False, False, {}

    def render(self):
        if self.index and os.environ["MODE"] == "grid":
            print("rendered in vain", file=sys.stderr)
        return np.full((4, 6, 3), 10 * (self.index + 1), np.uint8)


def make(lane, index):
    return lane.wrap(Painted(index), index)


def train():
    settings = fastlane.FastLaneSettings(mode=os.environ["MODE"], slot=1, interval_ms=1)
    lane = fastlane.FastLane(settings, os.environ["FOLDER"], emitter=Emitter(1))
    envs = gymnasium.vector.AsyncVectorEnv(
        [functools.partial(make, lane, index) for index in range(3)], context=os.environ["START"]
    )
    envs.reset(seed=1)
    pause = threading.Event()
    for _ in range(100):
        envs.step(np.zeros(3, int))
        pause.wait(0.01)
    envs.close()


if __name__ == "__main__":
    train()
"""


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize(("mode", "colour"), [("single", 20), ("grid", 10)])
def test_environments_in_processes_of_their_own(tmp_path, start, mode, colour):
    script = tmp_path / "training.py"
    script.write_text(TRAINING)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script)],
        env={"MODE": mode, "START": start, "FOLDER": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    words = np.fromfile(tmp_path / "main.ring", np.uint64)
    pixels = np.fromfile(tmp_path / "main.ring", np.uint8)[256 + 128 :][: 4 * 6 * 3]
    assert words[11] > 2, "the one that can be shown is"
    assert (pixels == colour).all()
    said = done.stderr  # the log always has the messages; the journal only if the subprocess inherited it
    alone = [index for index in (1, 2) if f"environment {index} is not in the grid: environment 0, which" in said]
    assert alone == ([1, 2] if mode == "grid" else [])
    assert said.count("is not in the grid") == len(alone), "once each"
    assert "rendered in vain" not in said
