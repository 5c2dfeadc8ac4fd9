"""Evaluation during a training, on the same episodes every time."""

import copy

from cleanrl_worker.agents import Agent
from cleanrl_worker.algorithms.reporting import Reporter
from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.evaluation import Result, Seat, play, summarize
from cleanrl_worker.policies import OurPolicy
from mosaic_worker.context import RunContext
from mosaic_worker.errors import RunCancelled
from mosaic_worker.frames.fastlane import FastLane, FastLaneSettings

__all__ = ["FIRST_SEED", "Evaluator"]

FIRST_SEED = 1_000_000
"""Evaluation episode i is reset with this plus i, in every run, so that runs can be compared."""
_FIGURES = ("return_mean", "return_std", "length_mean")


class Evaluator:
    """Plays `eval_episodes` episodes every `eval_every` steps, and knows the best score so far.

    It uses no random generator of the training, so that the training is the same without it.
    """

    def __init__(
        self, context: RunContext[CleanRLWorkerConfig], env_id: str, step: int, best: float | None = None
    ) -> None:
        """Evaluate in `env_id`; `best` is the best score of an earlier attempt."""
        self.best = best
        self._context = context
        self._env_id = env_id
        self._every = context.config.extras.eval_every
        self._last = step

    def is_due(self, step: int, target: int) -> bool:
        """Whether to evaluate at this step; always at the last."""
        if self._every is None or step == self._last:
            return False
        return step >= target or step // self._every > self._last // self._every

    def improves(self, agent: Agent, observation_space: object, action_space: object, reporter: Reporter) -> bool:
        """Evaluate and report; return whether the mean return is the best so far. A stop discards the evaluation."""
        extras, emitter, step = self._context.config.extras, self._context.emitter, reporter.step
        self._last = step
        policy = OurPolicy(self._env_id, copy.deepcopy(agent).cpu(), observation_space, action_space)
        nowhere, results = FastLane(FastLaneSettings(), None), list[Result]()
        count = min(extras.eval_num_envs, extras.eval_episodes)
        seats = [Seat(*policy.make_env(nowhere, index)) for index in range(count)]
        seeds = range(FIRST_SEED, FIRST_SEED + extras.eval_episodes)
        stream = None if extras.deterministic else 0
        try:
            results += play(policy, seats, seeds, self._context.stop.check, stream)
        except RunCancelled:
            return False
        finally:
            for seat in seats:
                seat.env.close()
        for each in sorted(results, key=lambda result: result.seed):
            emitter.emit(
                "evaluation_episode",
                **{"return": each.episode_return},
                length=each.length,
                step=step,
                seed=each.seed,
            )
        summary = summarize(results)
        reporter.scalars({f"eval/{name}": summary[name] for name in _FIGURES})
        score = float(summary["return_mean"])
        if self.best is not None and score <= self.best:
            return False
        self.best = score
        return True
