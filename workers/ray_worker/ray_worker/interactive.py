"""Interactive mode: policies act, one request at a time, in their own environment or in another process's."""

from typing import Any

from mosaic_worker.arrays import unstack
from mosaic_worker.errors import ConfigError, RequestError
from mosaic_worker.interactive import InteractiveWorker, StepResult
from mosaic_worker.spaces import space_from_json, value_from_json, values_from_json
from ray_worker.environments import AGENT, make
from ray_worker.policy_actor import RayPolicyActor, RayPolicyConfig, create_ray_actor
from ray_worker.policy_evaluator import Context, environment_of, has_state, is_alike, make_lane

__all__ = ["RayInteractive"]


class RayInteractive(InteractiveWorker):
    """Answers with the policies of `policy_path`, or without one with policies that have not learned yet."""

    def __init__(self, context: Context) -> None:
        """Load the policies; the environment is made by the first reset."""
        config = context.config
        self._context = context
        self._actor = _actor_of(context)
        self._environment = environment_of(self._actor.about)
        self._env: Any = None
        self._seen: dict[str, Any] = {}
        self._is_running = False
        self._agents: set[str] = set()
        """Those that have joined."""
        self._seed = config.seed or 0

    def reset(self, seed: int | None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; the same seed gives the same episode."""
        if self._env is None:
            lane = make_lane(self._context)
            self._env = make(
                self._environment,
                with_state=has_state(self._actor.about),
                render_mode="rgb_array" if lane.wants_frames else None,
                wrap=lane.wrap,
            )
        seen, _ = self._env.reset(seed=seed)
        self._seen = seen if self._environment.is_multi else {AGENT: seen}
        self._is_running = True
        if seed is not None:
            self._actor.begin_episode(seed)
        return self._shown(self._seen), {}

    def step(self, action: Any) -> StepResult:
        """Take the given action (of those whose turn it is, by name) or the policies' own."""
        if self._env is None or not self._is_running:
            raise RequestError("no episode is running: send reset first")
        taken = self._own() if action is None else self._given(action)
        if not self._environment.is_multi:
            seen, reward, terminated, truncated, _ = self._env.step(taken[AGENT])
            self._seen, self._is_running = {AGENT: seen}, not (terminated or truncated)
            return StepResult(taken[AGENT], seen, float(reward), bool(terminated), bool(truncated), {})
        seen, rewards, ends, cuts, _ = self._env.step(taken)
        over, cut = bool(ends.pop("__all__")), bool(cuts.pop("__all__"))
        self._is_running = not (over or cut)
        self._seen = {agent: each for agent, each in seen.items() if not (ends[agent] or cuts[agent])}
        return StepResult(taken, seen, rewards, over, cut, {})

    def init_agent(self, observation_space: Any, action_space: Any, seed: int | None, agent: str | None) -> None:
        """Let an agent join episodes elsewhere."""
        name = self._actor.name_of(agent)
        view = self._actor.view_of(name)
        if not is_alike(view.actions, given := space_from_json(action_space)):
            raise RequestError(f"the policy was made for actions {view.actions}, not for {given}")
        if observation_space is not None:
            sent = space_from_json(observation_space)
            if not (is_alike(view.raw, sent) or is_alike(view.inner, sent)):
                raise RequestError(f"the policy was made for observations {view.raw}, not for {sent}")
        self._agents.add(name)
        self._actor.begin_episode(self._seed if seed is None else seed, name)

    def begin_episode(self, agent: str | None, seed: int, episode: int, lane: int) -> None:
        """Seed the samples of a lane and clear its memory."""
        self._actor.begin_episode(seed, self._joined(agent), lane)

    def select_actions(self, agent: str | None, observations: Any, lanes: list[int], action_masks: Any) -> list[Any]:
        """Choose an action in each lane; equal to asking for one lane at a time."""
        name = self._joined(agent)
        view = self._actor.view_of(name)
        is_whole = view.has_mask and isinstance(observations, dict)
        values = values_from_json(view.raw if is_whole else view.inner, observations)
        rows = [unstack(values, row) for row in range(len(lanes))]
        return self._actor.select_actions(rows, name, action_masks, lanes)

    def probabilities(self) -> Any:
        """Return those of the last decision."""
        return self._actor.probabilities()

    def close(self) -> None:
        """Close the environment."""
        if self._env is not None:
            self._env.close()

    def _joined(self, agent: str | None) -> str:
        name = self._actor.name_of(agent)
        if name not in self._agents:
            raise RequestError(f"agent {agent!r} has not joined: send init_agent first")
        return name

    def _own(self) -> dict[str, Any]:
        return {agent: self._actor.act(agent, [each], [0])[0] for agent, each in self._seen.items()}

    def _given(self, action: Any) -> dict[str, Any]:
        if not self._environment.is_multi:
            return {AGENT: self._checked(AGENT, action)}
        if not isinstance(action, dict) or action.keys() != self._seen.keys():
            raise RequestError(f"give one action for each of {', '.join(self._seen)}")
        return {agent: self._checked(agent, each) for agent, each in action.items()}

    def _checked(self, agent: str, action: Any) -> Any:
        space = self._actor.view_of(agent).actions
        value = value_from_json(space, action)
        if not space.contains(value):
            raise RequestError(f"action {action!r} is not in {space}")
        return value

    def _shown(self, seen: dict[str, Any]) -> Any:
        return seen if self._environment.is_multi else seen[AGENT]


def _actor_of(context: Context) -> RayPolicyActor:
    config = context.config
    if config.policy_path:
        wanted = RayPolicyConfig(config.policy_path, deterministic=config.deterministic, seed=config.seed or 0)
        return create_ray_actor(wanted, "policy_path")
    if not config.environment.env_id:
        raise ConfigError("policy_path: missing; give a checkpoint, or env_id for a policy that has not learned")
    from ray_worker.untrained import untrained_actor  # noqa: PLC0415 - what trains is not needed to act

    return untrained_actor(config, config.seed or 0)
