"""Evaluation of a trained model: many episodes, several at a time, each with its own seed."""

import math
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from cleanrl_worker.algorithms.plan import use_threads
from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.environments import EpisodeTap, make_lane
from cleanrl_worker.policies import Policy, load_policy
from mosaic_worker.context import RunContext

__all__ = ["UNSAVED", "Result", "Seat", "play", "run_batched_evaluation", "summarize"]

_VIDEOS = "best,worst"
"""The record setting for capture_video."""
_POLICY_STREAM = 2
UNSAVED = (
    "{algo} does not save the statistics by which it normalises observations: they were estimated anew, over {episodes}"
    " episodes with the model, and returns may differ from those of the training"
)


@dataclass
class Seat:
    """One of the environments, and its current episode."""

    env: gymnasium.Env[Any, Any]
    tap: EpisodeTap
    seed: int = -1
    view: Any = None
    generator: np.random.Generator | None = None


@dataclass(frozen=True)
class Result:
    """One episode: the seed it was reset with, what it gave, and how many steps all environments had taken by then."""

    seed: int
    episode_return: float
    discounted: float
    length: int
    step: int


def run_batched_evaluation(context: RunContext[CleanRLWorkerConfig]) -> dict[str, Any]:
    """Play all episodes, `eval_repeat` times; episode i is reset with seed + i, whatever the batch size."""
    use_threads()
    config, extras = context.config, context.config.extras
    seed = config.seed or 0  # the runtime has derived one if it was not given
    policy = load_policy(config)
    if policy.path is not None:
        # Not as `step`, which counts the steps of this run.
        context.emitter.checkpoint_loaded(str(policy.path), trained_steps=policy.step)
    if episodes := policy.warm_up(context.stop.check):
        context.emitter.log("warning", UNSAVED.format(algo=config.algo, episodes=episodes))
    # Only one environment is recorded, so it has to play every episode.
    is_recorded = extras.capture_video or extras.record_settings(os.environ).is_on
    batch = 1 if is_recorded else min(extras.eval_num_envs, extras.eval_episodes)
    lane = make_lane(context, _VIDEOS, slot=0 if is_recorded else None)
    seats: list[Seat] = []
    results: list[Result] = []
    try:
        for index in range(batch):
            seats += [Seat(*policy.make_env(lane, index, extras.eval_gamma))]
        for repeat in range(extras.eval_repeat):
            _play_all(context, policy, seats, seed, repeat, results)
    finally:
        for seat in seats:
            seat.env.close()
    return {"env_id": policy.env_id, "seed": seed, **summarize(results)}


def _play_all(
    context: RunContext[CleanRLWorkerConfig],
    policy: Policy,
    seats: list[Seat],
    seed: int,
    repeat: int,
    results: list[Result],
) -> None:
    """Play every episode once, and report it."""
    extras, emitter = context.config.extras, context.emitter
    before = sum(result.length for result in results)
    seeds, stream = range(seed, seed + extras.eval_episodes), None if extras.deterministic else repeat
    for result in play(policy, seats, seeds, context.stop.check, stream):
        emitter.episode(
            repeat * extras.eval_episodes + result.seed - seed,
            result.episode_return,
            length=result.length,
            step=before + result.step,
            seed=result.seed,
            info={"discounted_return": result.discounted, "repeat": repeat},
        )
        results.append(result)
    summary = summarize(results)
    emitter.scalars(
        summary["steps"], {f"eval/{name}": summary[name] for name in ("return_mean", "discounted_return_mean")}
    )


def play(
    policy: Policy, seats: list[Seat], seeds: Sequence[int], check: Callable[[], None], stream: int | None
) -> Iterator[Result]:
    """Play one episode for each seed and yield its result; whichever environment is free takes the next seed.

    Actions are the most likely or, with `stream`, sampled by generators that depend on the seed and the stream alone.
    `check` is called between steps and may raise.
    """
    steps, waiting = 0, iter(seeds)
    playing = [seat for seat in seats if _begin(seat, waiting, stream)]
    while playing:
        check()
        generators = None if stream is None else [seat.generator for seat in playing if seat.generator]
        actions = policy.act([seat.view for seat in playing], generators)
        for seat, action in zip(list(playing), actions, strict=True):
            seat.view, _, terminated, truncated, _ = seat.env.step(action)
            steps += 1
            if seat.tap.over:
                yield Result(seat.seed, seat.tap.total, seat.tap.discounted, seat.tap.length, steps)
                if not _begin(seat, waiting, stream):
                    playing.remove(seat)
            elif terminated or truncated:  # a wrapper ended it, such as Atari's episodic life; the game continues
                seat.view, _ = seat.env.reset()


def _begin(seat: Seat, waiting: Iterator[int], stream: int | None) -> bool:
    """Begin the next episode in an environment; False if there is none left."""
    seed = next(waiting, None)
    if seed is None:
        return False
    seat.seed = seed
    seat.view, _ = seat.env.reset(seed=seed)
    seat.generator = None if stream is None else np.random.default_rng((seed, stream, _POLICY_STREAM))
    return True


def summarize(results: list[Result]) -> dict[str, Any]:
    """Figures over all episodes."""
    returns = [result.episode_return for result in results]
    return {
        "episodes": len(returns),
        "steps": sum(result.length for result in results),
        "return_mean": statistics.fmean(returns),
        "return_std": statistics.pstdev(returns),
        "return_min": min(returns),
        "return_max": max(returns),
        "return_median": statistics.median(returns),
        "discounted_return_mean": statistics.fmean(result.discounted for result in results),
        "length_mean": math.fsum(result.length for result in results) / len(results),
    }
