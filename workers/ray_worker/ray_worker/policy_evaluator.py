"""Evaluation of checkpoints without a cluster: episodes with fixed seeds, several at a time.

    results = run_evaluation(EvaluationConfig(actor=actor, num_episodes=20))

Episode i is reset with seed + i. Its result does not depend on the episodes that are played beside it.
"""

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mosaic_worker.context import RunContext
from mosaic_worker.errors import ConfigError
from mosaic_worker.frames.fastlane import FastLane
from mosaic_worker.spaces import space_from_json
from ray_worker.checkpoints import About
from ray_worker.config import RayWorkerConfig
from ray_worker.environments import AGENT, Environment, make, resolve, spaces_of
from ray_worker.evaluation_results import EpisodeMetrics, EvaluationResults
from ray_worker.policy_actor import (
    RANDOM,
    Player,
    RandomActor,
    RayPolicyActor,
    RayPolicyConfig,
    RayPolicyController,
    create_ray_actor,
)

__all__ = [
    "EvaluationConfig",
    "PolicyEvaluator",
    "environment_of",
    "evaluate",
    "has_state",
    "is_alike",
    "make_lane",
    "run_evaluation",
]

_AT_ONCE = 16
RESULTS = "evaluation"

Context = RunContext[RayWorkerConfig]
Make = Callable[[int], Any]


@dataclass(frozen=True)
class EvaluationConfig:
    """What is evaluated, and on which episodes."""

    actor: RayPolicyActor | RayPolicyController
    num_episodes: int = 100
    seed: int = 0
    environment: Environment | None = None
    """If left out, the environment that the checkpoint was trained on."""
    output_dir: str | os.PathLike[str] | None = None
    """If given, `summary.json`, `episodes.csv` and `agents.csv` are written there."""
    max_steps: int | None = None
    """Cuts off longer episodes."""


@dataclass
class _Seat:
    """One of the environments, and its current episode."""

    env: Any
    lane: int
    episode: int = -1
    seen: dict[str, Any] = field(default_factory=dict)
    """What those see whose turn it is."""
    returns: dict[str, float] = field(default_factory=dict)
    length: int = 0


class PolicyEvaluator:
    """Plays the episodes of an evaluation."""

    def __init__(self, config: EvaluationConfig, make_env: Make | None = None, *, at_once: int = _AT_ONCE) -> None:
        """Take what is evaluated; `make_env` makes environment number i, if it is not to be a plain one."""
        if config.num_episodes < 1:
            raise ConfigError(f"num_episodes: {config.num_episodes} is not allowed; give 1 or more")
        self._config = config
        self._actor: Player = config.actor
        self._about = _first(config.actor)
        self._environment = config.environment or environment_of(self._about.about)
        _require_agents(self._environment, self._about, config.actor)
        self._make = make_env or (lambda _: make(self._environment, with_state=has_state(self._about.about)))
        self._count = min(at_once, config.num_episodes)

    def play(self, check: Callable[[], None] = lambda: None) -> Iterator[EpisodeMetrics]:
        """Play all episodes and yield each when it ends; `check` is called between steps and may raise."""
        seats = [_Seat(self._make(lane), lane) for lane in range(self._count)]
        waiting = iter(range(self._config.num_episodes))
        try:
            playing = [seat for seat in seats if self._begin(seat, waiting)]
            while playing:
                check()
                actions = self._decide(playing)
                for seat in list(playing):
                    ended = self._step(seat, actions[seat.lane])
                    if ended is not None:
                        yield ended
                        if not self._begin(seat, waiting):
                            playing.remove(seat)
        finally:
            for seat in seats:
                seat.env.close()

    def results(self, episodes: list[EpisodeMetrics]) -> EvaluationResults:
        """Put episodes in order, with what was evaluated."""
        about, config = self._about.about, self._config
        return EvaluationResults(
            self._environment.env_id,
            self._environment.family,
            about.algorithm,
            str(self._about.path or ""),
            about.step,
            config.seed,
            self._about.is_deterministic,
            _names(config.actor),
            sorted(episodes, key=lambda each: each.episode),
        )

    def _begin(self, seat: _Seat, waiting: Iterator[int]) -> bool:
        """Begin the next episode in an environment; False if there is none left."""
        episode = next(waiting, None)
        if episode is None:
            return False
        seat.episode, seat.length, seat.returns = episode, 0, {}
        seen, _ = seat.env.reset(seed=self._config.seed + episode)
        seat.seen = seen if self._environment.is_multi else {AGENT: seen}
        self._actor.begin_episode(self._config.seed + episode, lane=seat.lane)
        return True

    def _decide(self, playing: list[_Seat]) -> dict[int, dict[str, Any]]:
        """Choose the actions in all environments, one agent after the other."""
        turns: dict[str, list[_Seat]] = defaultdict(list)
        for seat in playing:
            for agent in seat.seen:
                turns[agent].append(seat)
        actions: dict[int, dict[str, Any]] = defaultdict(dict)
        for agent, seats in turns.items():
            chosen = self._actor.act(agent, [seat.seen[agent] for seat in seats], [seat.lane for seat in seats])
            for seat, action in zip(seats, chosen, strict=True):
                actions[seat.lane][agent] = action
        return actions

    def _step(self, seat: _Seat, actions: dict[str, Any]) -> EpisodeMetrics | None:
        """Take a step; return the episode if it has ended."""
        if self._environment.is_multi:
            seen, rewards, ends, cuts, _ = seat.env.step(actions)
            over, cut = ends.pop("__all__") or cuts.pop("__all__"), any(cuts.values())
            cut = cut or (over and not all(ends.values()))
            seat.seen = {agent: each for agent, each in seen.items() if not (ends[agent] or cuts[agent])}
        else:
            each, reward, ended, cut, _ = seat.env.step(actions[AGENT])
            seat.seen, rewards, over = {AGENT: each}, {AGENT: float(reward)}, ended or cut
        seat.length += 1
        for agent, reward in rewards.items():
            seat.returns[agent] = seat.returns.get(agent, 0.0) + reward
        too_long = self._config.max_steps is not None and seat.length >= self._config.max_steps
        if not over and not too_long:
            return None
        total = sum(seat.returns.values()) / len(seat.returns)
        seed = self._config.seed + seat.episode
        return EpisodeMetrics(seat.episode, seed, total, seat.length, dict(seat.returns), bool(cut or not over))


def run_evaluation(config: EvaluationConfig) -> EvaluationResults:
    """Play all episodes; write the results to `output_dir` if there is one."""
    evaluator = PolicyEvaluator(config)
    results = evaluator.results(list(evaluator.play()))
    if config.output_dir is not None:
        results.save(Path(config.output_dir))
    return results


def evaluate(context: Context, seed: int) -> dict[str, Any]:
    """Evaluate the checkpoint of a run's config, report every episode, and write the results to the run's folder."""
    config, emitter = context.config, context.emitter
    wanted = RayPolicyConfig(config.policy_path or "", deterministic=config.deterministic, seed=seed)
    actor = create_ray_actor(wanted, "policy_path")
    emitter.checkpoint_loaded(str(actor.path), trained_steps=actor.about.step)
    if not config.deterministic and actor.is_deterministic:
        emitter.log("warning", f"{actor.about.algorithm} has values of actions, not probabilities: it is not sampled")
    lane = make_lane(context)
    environment = environment_of(actor.about)

    def make_env(index: int) -> Any:
        mode = "rgb_array" if lane.wants_frames else None
        state = has_state(actor.about)
        return make(environment, with_state=state, render_mode=mode, wrap=lambda env: lane.wrap(env, index))

    player = _against(actor, config, seed)
    evaluator = PolicyEvaluator(
        EvaluationConfig(player, config.eval_episodes, seed, environment), make_env, at_once=_at_once(lane)
    )
    found: list[EpisodeMetrics] = []
    steps = 0
    for each in evaluator.play(context.stop.check):
        steps += each.length
        several = each.returns if environment.is_multi else None
        emitter.episode(
            each.episode, each.episode_return, length=each.length, step=steps, seed=each.seed, returns=several
        )
        found.append(each)
    results = evaluator.results(found)
    summary = results.summary()
    figures = {"eval/return_mean": summary["return_mean"]}
    figures |= {f"eval/win_rate/{agent}": rate for agent, rate in summary.get("win_rates", {}).items()}
    emitter.scalars(steps, figures)
    for path in results.save(context.run_dir / RESULTS):
        emitter.artifact("evaluation", path.relative_to(context.run_dir))
    return summary


def environment_of(about: About) -> Environment:
    """The environment that a checkpoint was trained on."""
    api = about.api_type if about.api_type != "GYMNASIUM" else None
    return resolve(about.env_id, about.family, api, about.config["environment"]["env_kwargs"])


def make_lane(context: Context) -> FastLane:
    """Make what shows the run's frames."""
    config = context.config
    return FastLane(
        config.fastlane_settings(os.environ),
        os.environ.get("MOSAIC_FASTLANE_DIR"),
        record=config.record_settings(os.environ),
        run_dir=context.run_dir,
        emitter=context.emitter,
    )


def _at_once(lane: FastLane) -> int:
    """Environments that are played at once; frames are those of one, which therefore plays every episode."""
    return 1 if lane.wants_frames else _AT_ONCE


def _against(actor: RayPolicyActor, config: RayWorkerConfig, seed: int) -> RayPolicyActor | RayPolicyController:
    """Let other policies act for the agents that `opponents` names."""
    if not config.opponents:
        return actor
    policies: dict[str, Any] = dict.fromkeys(actor.agents, actor)
    actions = {agent: space_from_json(space) for agent, space in actor.about.action_spaces.items()}
    anyone = RandomActor(actions, seed)
    for agent, path in config.opponents.items():
        wanted = RayPolicyConfig(path, env_id=actor.about.env_id, deterministic=config.deterministic, seed=seed)
        policies[agent] = anyone if path == RANDOM else create_ray_actor(wanted, f"opponents.{agent}")
    return RayPolicyController(policies)


def has_state(about: About) -> bool:
    """Whether observations have a global state in them, for a central critic."""
    spaces = about.observation_spaces.values()
    return any("state" in space.get("spaces", {}) for space in spaces)


def _first(actor: RayPolicyActor | RayPolicyController) -> RayPolicyActor:
    """The checkpoint that an evaluation is named after."""
    if isinstance(actor, RayPolicyActor):
        return actor
    trained = [policy for agent in actor.agents if isinstance(policy := actor.policy_of(agent), RayPolicyActor)]
    if not trained:
        raise ConfigError("actor: no agent has a trained policy")
    return trained[0]


def _names(actor: RayPolicyActor | RayPolicyController) -> dict[str, str]:
    policies = {agent: actor if isinstance(actor, RayPolicyActor) else actor.policy_of(agent) for agent in actor.agents}
    return {agent: str(getattr(policy, "path", None) or RANDOM) for agent, policy in policies.items()}


def _require_agents(environment: Environment, first: RayPolicyActor, actor: Player) -> None:
    """Refuse an environment in which somebody has no policy, or other spaces than its policy."""
    spaces = spaces_of(environment, with_state=has_state(first.about))
    if missing := [agent for agent in spaces.agents if agent not in actor.agents]:
        raise ConfigError(f"agents: {missing[0]} of {environment.env_id} has no policy; give it a checkpoint or random")
    for agent in spaces.agents:
        policy = actor.policy_of(agent) if isinstance(actor, RayPolicyController) else first
        if isinstance(policy, RayPolicyActor):
            view = policy.view_of(agent)
            for mine, given in ((view.raw, spaces.raw[agent]), (view.actions, spaces.actions[agent])):
                if not is_alike(mine, given):
                    raise ConfigError(f"env_id: the policy of {agent} was trained with {mine}, not with {given}")


def is_alike(one: Any, other: Any) -> bool:
    """Whether kind, shape and number of actions agree. Bounds differ between versions of an environment."""
    if hasattr(one, "spaces") and hasattr(other, "spaces"):
        both = one.spaces, other.spaces
        return both[0].keys() == both[1].keys() and all(is_alike(both[0][key], both[1][key]) for key in both[0])
    return (type(one).__name__, one.shape, getattr(one, "n", None)) == (
        type(other).__name__,
        other.shape,
        getattr(other, "n", None),
    )
