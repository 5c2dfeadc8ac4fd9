"""How well our `ppo` learns with its defaults, against CleanRL's own ppo script with its defaults.

Method. Both train for the same number of steps with seeds 1 to 5, as runs of a real stack, two at a time, each with
one CPU: ours in the cleanrl worker's default profile, CleanRL's script (cleanrl 0.4.8 from PyPI, unmodified) in its
legacy profile. Nothing is set but environment, steps and seed. The score of a training is the mean of its last 100
episode returns, so the policy that explores, not a greedy one. MiniGrid is ours alone: CleanRL's script has no network
for it. No reward is shaped: in MountainCar-v0 neither finds the goal within these steps, and both end at -200.

`ours_at_least_equal`: the 95 % interval of the difference of means over seeds (Welch's t) reaches zero or lies above
it. `collapsed`: seeds of ours that end no better than their own first 20 episodes, though our median is better.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from stack import Stack  # noqa: E402 - the path is set just above

from mosaic_bus import topics  # noqa: E402 - as above
from mosaic_bus.commands import Episodes  # noqa: E402 - as above
from mosaic_bus.messages import RunState  # noqa: E402 - as above

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mosaic_bus import Message

LAST = 100
FIRST = 20
PROFILES = {"ours": "default", "cleanrl": "legacy"}
# Two-sided 95 % quantiles of Student's t for 1 to 20 degrees of freedom.
T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10)


class Task(NamedTuple):
    """An environment and how long it is trained on."""

    env_id: str
    steps: int
    both: bool = True


TASKS = (
    Task("CartPole-v1", 100_000),
    Task("Acrobot-v1", 100_000),
    Task("MountainCar-v0", 100_000),
    Task("LunarLander-v2", 200_000),
    Task("MiniGrid-Empty-5x5-v0", 50_000, both=False),
)


class Score(NamedTuple):
    """How a training began and how it ended."""

    first: float
    last: float


def submit(stack: Stack, task: Task, who: str, seed: int) -> str:
    """Queue a training with its library's defaults."""
    config = {"algo": "ppo", "env_id": task.env_id, "total_timesteps": task.steps, "seed": seed}
    name = f"{who}-{task.env_id}-seed{seed}".lower()
    resources = {"cpus": 1, "memory_mb": 2048}
    return stack.submit(worker="cleanrl", profile=PROFILES[who], config=config, name=name, resources=resources)


def score_of(stack: Stack, run: str) -> Score:
    """Read the returns of a finished training from the store."""
    returns: list[float] = []
    start: int | None = 0
    while start is not None:
        page = stack.bus.request("telemetry", Episodes(run=run, start=start, limit=10_000), timeout=60)
        returns += [row["return"] for row in page.rows]
        start = page.next
    if len(returns) < LAST:
        raise SystemExit(f"run {run} reported only {len(returns)} episodes")
    return Score(statistics.mean(returns[:FIRST]), statistics.mean(returns[-LAST:]))


def follow(
    stack: Stack, news: Iterator[Message], waiting: dict[str, tuple[str, str, int]]
) -> dict[tuple[str, str], list[Score]]:
    """Wait for all runs; give the scores by environment and library."""
    scores: dict[tuple[str, str], list[Score]] = {}
    for message in news:
        state = RunState.model_validate(message.payload)
        if state.run not in waiting or not state.state.final:
            continue
        env_id, who, seed = waiting.pop(state.run)
        if state.state != "succeeded":
            raise SystemExit(f"{who}, {env_id}, seed {seed}: {state.state}: {state.reason}")
        stack.wait_stored(state.run)
        score = score_of(stack, state.run)
        scores.setdefault((env_id, who), []).append(score)
        print(f"{env_id} {who} seed {seed}: {score.first:.2f} -> {score.last:.2f}", file=sys.stderr, flush=True)
        if not waiting:
            return scores
    raise SystemExit(f"nothing has ended for 15 minutes; waiting for {sorted(waiting.values())}")


def difference(ours: list[float], theirs: list[float]) -> tuple[float, float]:
    """Difference of means and half the width of its 95 % interval (Welch)."""
    a, b = np.var(ours, ddof=1) / len(ours), np.var(theirs, ddof=1) / len(theirs)
    mean = float(np.mean(ours) - np.mean(theirs))
    if a + b == 0:
        return mean, 0.0
    freedom = (a + b) ** 2 / (a**2 / (len(ours) - 1) + b**2 / (len(theirs) - 1))
    return mean, float(T_95[min(int(freedom), len(T_95)) - 1] * np.sqrt(a + b))


def judge(scores: dict[tuple[str, str], list[Score]], task: Task) -> dict[str, object]:
    """Put the result of one environment into figures."""
    ours = scores[task.env_id, "ours"]
    ends = [each.last for each in ours]
    learned = statistics.median(ends) > statistics.median(each.first for each in ours)
    result: dict[str, object] = {
        "steps": task.steps,
        "ours": [round(each, 2) for each in sorted(ends)],
        "ours_mean": round(statistics.mean(ends), 2),
        "collapsed": sum(learned and each.last <= each.first for each in ours),
    }
    if task.both:
        theirs = [each.last for each in scores[task.env_id, "cleanrl"]]
        mean, half = difference(ends, theirs)
        result |= {
            "cleanrl": [round(each, 2) for each in sorted(theirs)],
            "cleanrl_mean": round(statistics.mean(theirs), 2),
            "difference": round(mean, 2),
            "half_width_95": round(half, 2),
            "ours_at_least_equal": mean + half >= 0,
        }
    return result


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="at least 2")
    parser.add_argument("--env", action="append", choices=[task.env_id for task in TASKS], help="only these")
    parser.add_argument("--scale", type=float, default=1.0, help="of the steps of each training")
    arguments = parser.parse_args()
    tasks = [
        task._replace(steps=int(task.steps * arguments.scale))
        for task in TASKS
        if not arguments.env or task.env_id in arguments.env
    ]
    with tempfile.TemporaryDirectory(prefix="mosaic-bench-") as folder, Stack(Path(folder) / "home", cpus=2) as stack:
        news = stack.bus.listen(topics.RUN_STATES, timeout=900)
        waiting = {
            submit(stack, task, who, seed): (task.env_id, who, seed)
            for task in tasks
            for seed in range(1, arguments.seeds + 1)
            for who in PROFILES
            if task.both or who == "ours"
        }
        scores = follow(stack, news, waiting)
    print(json.dumps({task.env_id: judge(scores, task) for task in tasks}))


if __name__ == "__main__":
    main()
