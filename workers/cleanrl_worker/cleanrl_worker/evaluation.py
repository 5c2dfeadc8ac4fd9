"""Evaluation of a trained model: many episodes, several at a time, each with a seed of its own."""

import math
import os
import statistics
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from cleanrl_worker.algorithms.plan import use_threads
from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.environments import EpisodeTap, make_lane
from cleanrl_worker.policies import Policy, load_policy
from mosaic_worker.context import RunContext

__all__ = ["UNSAVED", "run_batched_evaluation"]

_VIDEOS = "best,worst"
"""What capture_video records."""
_POLICY_STREAM = 2
UNSAVED = (
    "{algo} does not save the statistics by which it normalises observations: they were estimated anew, over {episodes}"
    " episodes with the model, and returns may differ from those of the training"
)


@dataclass
class _Seat:
    """One of the environments, and the episode that is played in it."""

    env: gymnasium.Env[Any, Any]
    tap: EpisodeTap
    episode: int = -1
    view: Any = None
    generator: np.random.Generator | None = None


@dataclass(frozen=True)
class _Result:
    episode_return: float
    discounted: float
    length: int


def run_batched_evaluation(context: RunContext[CleanRLWorkerConfig]) -> dict[str, Any]:
    """Play all episodes, `eval_repeat` times; episode i is reset with seed + i, however many run at a time."""
    use_threads()
    config, extras = context.config, context.config.extras
    seed = config.seed or 0  # the runtime has drawn one if it was not given
    policy = load_policy(config)
    if policy.path is not None:
        # Not as `step`: the steps of this run are those that it plays.
        context.emitter.checkpoint_loaded(str(policy.path), trained_steps=policy.step)
    if episodes := policy.warm_up(context.stop.check):
        context.emitter.log("warning", UNSAVED.format(algo=config.algo, episodes=episodes))
    # One environment is recorded. For the best and the worst of all episodes it has to play them all.
    is_recorded = extras.capture_video or extras.record_settings(os.environ).is_on
    batch = 1 if is_recorded else min(extras.eval_num_envs, extras.eval_episodes)
    lane = make_lane(context, _VIDEOS, slot=0 if is_recorded else None)
    seats: list[_Seat] = []
    results: list[_Result] = []
    try:
        for index in range(batch):
            seats += [_Seat(*policy.make_env(lane, index, extras.eval_gamma))]
        for repeat in range(extras.eval_repeat):
            _play_all(context, policy, seats, seed, repeat, results)
    finally:
        for seat in seats:
            seat.env.close()
    return {"env_id": policy.env_id, "seed": seed, **_summary(results)}


def _play_all(
    context: RunContext[CleanRLWorkerConfig],
    policy: Policy,
    seats: list[_Seat],
    seed: int,
    repeat: int,
    results: list[_Result],
) -> None:
    """Play every episode once: whichever environment is free takes the next."""
    extras, emitter = context.config.extras, context.emitter
    steps = sum(result.length for result in results)
    waiting = iter(range(extras.eval_episodes))
    playing = [seat for seat in seats if _begin(seat, waiting, seed, repeat, sampled=not extras.deterministic)]
    while playing:
        context.stop.check()
        generators = None if extras.deterministic else [seat.generator for seat in playing if seat.generator]
        actions = policy.act([seat.view for seat in playing], generators)
        for seat, action in zip(list(playing), actions, strict=True):
            seat.view, _, terminated, truncated, _ = seat.env.step(action)
            steps += 1
            if seat.tap.over:
                result = _Result(seat.tap.total, seat.tap.discounted, seat.tap.length)
                emitter.episode(
                    repeat * extras.eval_episodes + seat.episode,
                    result.episode_return,
                    length=result.length,
                    step=steps,
                    seed=seed + seat.episode,
                    info={"discounted_return": result.discounted, "repeat": repeat},
                )
                results.append(result)
                if not _begin(seat, waiting, seed, repeat, sampled=not extras.deterministic):
                    playing.remove(seat)
            elif terminated or truncated:  # a wrapper ended it, such as that of Atari's lives; the game goes on
                seat.view, _ = seat.env.reset()
    summary = _summary(results)
    emitter.scalars(steps, {f"eval/{name}": summary[name] for name in ("return_mean", "discounted_return_mean")})


def _begin(seat: _Seat, waiting: Any, seed: int, repeat: int, *, sampled: bool) -> bool:
    """Begin the next episode in an environment; False if there is none left."""
    episode = next(waiting, None)
    if episode is None:
        return False
    seat.episode = episode
    seat.view, _ = seat.env.reset(seed=seed + episode)
    seat.generator = np.random.default_rng((seed + episode, repeat, _POLICY_STREAM)) if sampled else None
    return True


def _summary(results: list[_Result]) -> dict[str, Any]:
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
