"""The state of a training: how it is saved and restored."""

import json
import random
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch

from cleanrl_worker import checkpoints
from cleanrl_worker.agents import Agent
from cleanrl_worker.algorithms.plan import Plan
from cleanrl_worker.algorithms.return_statistics import ReturnStatistics
from cleanrl_worker.checkpoints import About, Checkpoint
from mosaic_worker.errors import ConfigError
from mosaic_worker.spaces import space_to_json

__all__ = ["TrainingState"]


@dataclass(frozen=True)
class TrainingState:
    """Everything that changes during a training."""

    plan: Plan[Any]
    kind: str
    envs: list[gymnasium.Env[Any, Any]]
    agent: Agent
    optimizer: torch.optim.Optimizer
    returns: ReturnStatistics = field(default_factory=ReturnStatistics)

    def save(
        self,
        folder: Path,
        step: int,
        episodes: int,
        curriculum: dict[str, Any] | None,
        best_score: float | None = None,
    ) -> Path:
        """Write a checkpoint."""
        plan = self.plan
        about = About(
            agent=self.kind,
            env_id=plan.env_id,
            seed=plan.args.seed,
            step=step,
            target=plan.target,
            episodes=episodes,
            args=asdict(plan.args),
            **self._spaces(),
            random=self._random(),
            returns=self.returns.state(),
            curriculum=curriculum,
            best_score=best_score,
        )
        weights, optimizer = self.agent.state_dict(), self.optimizer.state_dict()
        return checkpoints.save(Checkpoint(about, weights, optimizer, torch.get_rng_state()), folder)

    def restore(self, saved: Checkpoint) -> None:
        """Restore everything but unfinished episodes, which begin again; refuse a checkpoint that does not fit."""
        about, where = saved.about, f"{self.plan.field}: {self.plan.checkpoint_path!r}"
        for name, space in self._spaces().items():
            if getattr(about, name) != space:
                raise ConfigError(f"{where}: its {name} is {getattr(about, name)}, that of {about.env_id} is {space}")
        try:
            if about.agent != self.kind:
                raise ValueError(f"it is of an agent {about.agent!r}, this one is {self.kind!r}")
            self.agent.load_state_dict(saved.weights)
            self.optimizer.load_state_dict(saved.optimizer)
            vars(self.returns).update(ReturnStatistics(**about.returns).state())
            version, words, gauss = about.random["python"]
            random.setstate((version, tuple(words), gauss))
            np.random.set_state(tuple(about.random["numpy"]))  # noqa: NPY002 - the global generator
            torch.set_rng_state(saved.torch_random)
            for env, generator in zip(self.envs, about.random["envs"], strict=False):  # the checkpoint may have fewer
                env.unwrapped.np_random.bit_generator.state = generator
        except (RuntimeError, ValueError, TypeError, KeyError) as error:
            raise ConfigError(f"{where} does not fit: {error}") from error

    def _spaces(self) -> dict[str, dict[str, Any]]:
        env = self.envs[0]
        spaces = {"observation_space": env.observation_space, "action_space": env.action_space}
        return {name: json.loads(json.dumps(space_to_json(space))) for name, space in spaces.items()}

    def _random(self) -> dict[str, Any]:
        kind, keys, *rest = np.random.get_state()  # noqa: NPY002 - as above
        generators = [env.unwrapped.np_random.bit_generator.state for env in self.envs]
        return {"python": random.getstate(), "numpy": [kind, keys.tolist(), *rest], "envs": generators}
