"""RLlib's callbacks. They run in the process that steps the environments, often an actor on another machine.

An episode travels to the driver among RLlib's own metrics, as JSON. What an actor prints is prefixed and coloured by
Ray, and never gets into a journal.
"""

import json
import os
from typing import Any

from ray.rllib.callbacks.callbacks import RLlibCallback

from ray_worker.environments import AGENT

__all__ = ["EPISODES", "EpisodeReporter"]

EPISODES = "mosaic_episodes"


class EpisodeReporter(RLlibCallback):  # type: ignore[misc]
    """Reports every finished episode with the return of each agent and the module that acted for it."""

    def __init__(self) -> None:
        """Count episodes from 0."""
        super().__init__()
        self._begun = 0

    def on_episode_created(self, *, episode: Any, env_runner: Any = None, **_: Any) -> None:
        """Name the episode. RLlib's random name would seat self-play differently in each run of the same seed."""
        config = env_runner.config
        index = env_runner.worker_index
        process = os.getpid() if index else 0  # An actor that replaces another begins to count again.
        episode.id_ = f"{config.seed}-{config.env_config.get('first_step', 0)}-{index}-{process}-{self._begun}"
        self._begun += 1

    def on_episode_end(
        self, *, episode: Any, prev_episode_chunks: Any = None, metrics_logger: Any = None, **_: Any
    ) -> None:
        """Sum up the episode, which may have been sampled in several chunks."""
        chunks = [*(prev_episode_chunks or ()), episode]
        returns: dict[str, float] = {}
        modules: dict[str, str] = {}
        for chunk in chunks:
            parts = getattr(chunk, "agent_episodes", None) or {AGENT: chunk}
            for agent, part in parts.items():
                returns[agent] = returns.get(agent, 0.0) + float(part.get_return())
                modules[agent] = episode.module_for(agent) if chunk is not part else ""
        # Not the sum of the chunks' lengths: the learner has added a step to each that it was given.
        length = episode.env_t if hasattr(episode, "env_t") else episode.t
        found = {"returns": returns, "modules": modules, "length": int(length)}
        metrics_logger.log_value(EPISODES, json.dumps(found), reduce="item_series")
