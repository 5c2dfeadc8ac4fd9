"""RLlib's AlgorithmConfig for a run, and what an algorithm cannot do, refused before Ray starts."""

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gymnasium import spaces

from mosaic_worker.errors import ConfigError
from ray_worker.algo_params import A2C_SETTINGS, check_params, config_class
from ray_worker.config import Algorithm, PolicyConfiguration, RayWorkerConfig
from ray_worker.environments import Environment, Spaces, make, resolve, spaces_of
from ray_worker.fastlane import frame_settings, watcher
from ray_worker.policies import Policies, policies_of

__all__ = ["Task", "algorithm_config", "task_of"]

ENV_NAME = "mosaic"
_OFF_POLICY = ("DQN", "SAC")
_ASYNCHRONOUS = ("IMPALA", "APPO")
_REPLAY = "MultiAgentEpisodeReplayBuffer"
_CAPACITY = 50_000
_ITERATION_S = 1
"""Minimum seconds of an iteration of an asynchronous algorithm. RLlib's 10 would delay reports and a stop."""


@dataclass(frozen=True)
class Task:
    """A resolved run: the environment, its spaces and the modules."""

    algorithm: Algorithm
    environment: Environment
    spaces: Spaces
    policies: Policies
    params: dict[str, Any]
    """RLlib's training settings, checked."""

    @property
    def is_off_policy(self) -> bool:
        """Whether it learns from a replay buffer."""
        return self.algorithm in _OFF_POLICY


def task_of(config: RayWorkerConfig) -> Task:
    """Resolve a config; ConfigError for what cannot run."""
    training, wanted = config.training, config.environment
    environment = resolve(wanted.env_id, wanted.family, wanted.api_type, wanted.env_kwargs)
    with_state = config.policy_configuration == PolicyConfiguration.SHARED_VALUE_FUNCTION and environment.is_multi
    found = spaces_of(environment, with_state=with_state)
    _check_actions(training.algorithm, environment, found)
    policies = policies_of(config, found, is_multi=environment.is_multi)
    given = dict(training.algo_params)
    if training.algorithm == "A2C":
        if clash := sorted(given.keys() & A2C_SETTINGS.keys()):
            raise ConfigError(f"training.algo_params.{clash[0]}: it is what makes A2C of PPO; leave it out, or use PPO")
        given = {**A2C_SETTINGS, **given}
    return Task(training.algorithm, environment, found, policies, check_params(training.algorithm, given))


def _check_actions(algorithm: Algorithm, environment: Environment, found: Spaces) -> None:
    discrete = all(isinstance(space, spaces.Discrete) for space in found.actions.values())
    if algorithm == "DQN" and not discrete:
        raise ConfigError(
            f"training.algorithm: DQN learns discrete actions only, and {environment.env_id} has "
            f"{next(iter(found.actions.values()))}; use PPO or SAC"
        )
    if algorithm == "SAC":
        if found.has_masks:
            raise ConfigError(
                f"training.algorithm: SAC cannot follow action masks, which {environment.env_id} has; use PPO or DQN"
            )
        if not all(isinstance(space, spaces.Discrete | spaces.Box) for space in found.actions.values()):
            raise ConfigError(
                f"training.algorithm: SAC learns numbers or one discrete action, and {environment.env_id} has "
                f"{next(iter(found.actions.values()))}; use PPO"
            )


def algorithm_config(task: Task, config: RayWorkerConfig, seed: int, run_dir: Path, first_step: int = 0) -> Any:
    """Make RLlib's config. Everything that it holds can be pickled and sent to other machines."""
    from ray.tune.registry import register_env  # noqa: PLC0415 - takes seconds

    from ray_worker.callbacks import EpisodeReporter  # noqa: PLC0415 - as above

    register_env(ENV_NAME, _make_env)
    frames = frame_settings(config, os.environ, run_dir)
    resources = config.resources
    env_config = {
        "environment": task.environment,
        "with_state": task.policies.has_central_critic,
        "frames": frames,
        "first_step": first_step,
        "envs": resources.num_envs_per_worker,
    }
    made = config_class(task.algorithm)()
    made.environment(ENV_NAME, env_config=env_config, disable_env_checking=True)
    made.framework("torch")
    logging.getLogger("ray.rllib.algorithms").setLevel(logging.ERROR)  # It warns that the new API stack is in use.
    made.debugging(seed=seed + first_step, log_level="ERROR")
    made.callbacks(EpisodeReporter)
    # An environment that fails would be restarted a thousand times. A failed run can be retried from its checkpoint.
    made.fault_tolerance(restart_failed_env_runners=False)
    made.env_runners(
        num_env_runners=resources.num_workers,
        num_envs_per_env_runner=resources.num_envs_per_worker,
        num_cpus_per_env_runner=resources.num_cpus,
    )
    made.learners(num_learners=0, num_gpus_per_learner=resources.num_gpus)
    if task.algorithm in _ASYNCHRONOUS:
        made.reporting(min_time_s_per_iteration=_ITERATION_S)
    _set_params(made, task)
    _set_modules(made, task, config.training.network)
    try:
        made.validate()
    except Exception as error:
        raise ConfigError(f"training: RLlib refuses it: {str(error).strip()}") from error
    return made


def _set_params(made: Any, task: Task) -> None:
    sampling = {name: task.params[name] for name in ("rollout_fragment_length", "batch_mode") if name in task.params}
    reporting = {name: value for name, value in task.params.items() if name.startswith("min_")}
    params = {name: value for name, value in task.params.items() if name not in {*sampling, *reporting}}
    if task.is_off_policy and task.environment.is_multi and "replay_buffer_config" not in params:
        params["replay_buffer_config"] = {"type": _REPLAY, "capacity": _CAPACITY}
    if task.is_off_policy and task.environment.api == "AEC":
        # One step of a turn-based game completes no agent's step, and RLlib's buffer would stay empty.
        sampling.setdefault("batch_mode", "complete_episodes")
    made.training(**params)
    made.env_runners(**sampling)
    made.reporting(**reporting)


def _set_modules(made: Any, task: Task, network: Mapping[str, Any]) -> None:
    from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec  # noqa: PLC0415 - takes seconds
    from ray.rllib.core.rl_module.rl_module import RLModuleSpec  # noqa: PLC0415 - as above

    from ray_worker import networks  # noqa: PLC0415 - as above

    _check_network(network)
    # Not as a DefaultModelConfig: then actor and critic would share layers, which PPO's own default is not.
    made.rl_module(model_config=dict(network))
    policies, found = task.policies, task.spaces
    if not task.environment.is_multi:
        return
    kind: Any = None
    if policies.has_central_critic:
        kind = networks.CentralCriticActor
    elif found.has_masks:
        kind = {"DQN": networks.MaskedDQN, "APPO": networks.MaskedAPPO}.get(task.algorithm, networks.MaskedPPO)
    specs = {
        module: RLModuleSpec(
            module_class=kind, observation_space=found.observations[agent], action_space=found.actions[agent]
        )
        for module, agent in policies.members.items()
    }
    modules: dict[str, Any] = {"rl_module_specs": specs}
    if policies.has_central_critic:
        size = found.state_size + len(policies.members)
        specs[networks.CRITIC] = RLModuleSpec(
            module_class=networks.CentralCritic,
            observation_space=spaces.Box(-float("inf"), float("inf"), (size,)),
            action_space=next(iter(found.actions.values())),
            learner_only=True,
        )
        modules["multi_rl_module_class"] = networks.CentralCriticModules
    made.multi_agent(
        policies=set(policies.members), policy_mapping_fn=policies.mapping, policies_to_train=list(policies.trained)
    )
    made.rl_module(rl_module_spec=MultiRLModuleSpec(**modules))


def _check_network(network: Mapping[str, Any]) -> None:
    """Refuse what RLlib's default networks do not have."""
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig  # noqa: PLC0415 - takes seconds

    try:
        DefaultModelConfig(**network)
    except TypeError as error:
        known = ", ".join(DefaultModelConfig.__dataclass_fields__)
        raise ConfigError(f"training.network: {error}; RLlib has: {known}") from error


def _make_env(context: Any) -> Any:
    """Make one environment, in the process that steps it."""
    watch: dict[str, Any] = {}
    if context["frames"] is not None:
        watch = {"render_mode": "rgb_array", "wrap": watcher(context["frames"], context.worker_index, context["envs"])}
    return make(context["environment"], with_state=context["with_state"], **watch)
