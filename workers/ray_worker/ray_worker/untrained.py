"""Policies with the weights that a training begins with, to compare with and to try the worker without a checkpoint."""

from pathlib import Path

import torch

from mosaic_worker.spaces import space_to_json
from ray_worker.algorithms import algorithm_config, task_of
from ray_worker.checkpoints import About
from ray_worker.config import RayWorkerConfig
from ray_worker.inference import use_one_thread
from ray_worker.policy_actor import RayPolicyActor

__all__ = ["untrained_actor"]


def untrained_actor(config: RayWorkerConfig, seed: int) -> RayPolicyActor:
    """Build the networks of a training that has not begun; no cluster is needed."""
    use_one_thread()
    task = task_of(config)
    made = algorithm_config(task, config, seed, Path())
    spaces = {
        module: (task.spaces.observations[agent], task.spaces.actions[agent])
        for module, agent in task.policies.members.items()
    }
    torch.manual_seed(seed)
    modules = made.get_multi_rl_module_spec(spaces=spaces).build()
    about = About(
        algorithm=task.algorithm,
        config=config.model_dump(mode="json", exclude={"run_id", "worker_id"}),
        env_id=task.environment.env_id,
        family=task.environment.family,
        api_type=task.environment.api,
        policy_configuration=str(task.policies.configuration),
        agents=dict(task.policies.agents),
        observation_spaces={name: space_to_json(space) for name, space in task.spaces.observations.items()},
        raw_spaces={name: space_to_json(space) for name, space in task.spaces.raw.items()},
        action_spaces={name: space_to_json(space) for name, space in task.spaces.actions.items()},
        modules=list(task.policies.members),
        seed=seed,
        step=0,
        target=0,
        episodes=0,
        iterations=0,
        versions={},
    )
    return RayPolicyActor(about, lambda name: modules[name], deterministic=config.deterministic, seed=seed)
