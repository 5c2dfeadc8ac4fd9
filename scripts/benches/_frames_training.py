"""The training side of the frames bench: steps per second of a rollout, with and without frames.

Runs in the environment of the baseline worker, since that has gymnasium. CartPole-v1 is stepped with the actions of a
small network (two layers of 64, numpy), about the work per step of a PPO rollout. The time that the environment itself
spends on rendering is measured, subtracted and reported separately: the rest is the cost of FastLane.
"""

from __future__ import annotations

import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from mosaic_worker.frames.fastlane import FastLane, FastLaneSettings

ENVS = {"none": 1, "off": 1, "single": 1, "none4": 4, "grid": 4}


class Timed(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Measures the total time of rendering."""

    spent = 0.0

    def render(self) -> Any:
        """Render, and measure the time."""
        began = time.perf_counter()
        picture = self.env.render()
        Timed.spent += time.perf_counter() - began
        return picture


class Policy:
    """A small network that chooses actions."""

    def __init__(self) -> None:
        random = np.random.default_rng(0)
        self._layers = [random.normal(0, 0.3, shape) for shape in ((4, 64), (64, 64), (64, 2))]

    def __call__(self, observation: Any) -> int:
        hidden = np.tanh(observation @ self._layers[0])
        hidden = np.tanh(hidden @ self._layers[1])
        return int(np.argmax(hidden @ self._layers[2]))


def make(mode: str, folder: Path) -> list[Any]:
    """Make the wrapped environments of a case."""
    envs = [Timed(gymnasium.make("CartPole-v1", render_mode="rgb_array")) for _ in range(ENVS[mode])]
    if mode.startswith("none"):
        return envs
    folder.mkdir()
    lane = FastLane(FastLaneSettings(mode=mode, interval_ms=33), folder)
    return [lane.wrap(env, index) for index, env in enumerate(envs)]


def rollout(envs: list[Any], policy: Policy, seconds: float) -> tuple[float, float]:
    """Step the environments in turn; return steps per second without rendering, and the share of rendering."""
    observations = [env.reset(seed=index)[0] for index, env in enumerate(envs)]
    Timed.spent = 0.0
    steps, began = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - began) < seconds:
        for _ in range(100):
            for index, env in enumerate(envs):
                observation, _, terminated, truncated, _ = env.step(policy(observations[index]))
                observations[index] = env.reset()[0] if terminated or truncated else observation
        steps += 100 * len(envs)
    return steps / (elapsed - Timed.spent), Timed.spent / elapsed


def main() -> None:
    """Measure all cases in turn for several rounds, and print the rates."""
    folder, rounds, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    policy = Policy()
    cases = {mode: make(mode, folder / mode) for mode in ENVS}
    rates: dict[str, list[tuple[float, float]]] = {mode: [] for mode in ENVS}
    order, shuffled = list(cases), random.Random(0)
    for _ in range(rounds):
        for mode in order:
            rates[mode].append(rollout(cases[mode], policy, seconds))
        shuffled.shuffle(order)  # a case is slower right after one that draws four frames at a time
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
