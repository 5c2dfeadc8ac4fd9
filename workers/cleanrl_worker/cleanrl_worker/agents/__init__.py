"""The networks of our own ppo, by kind of observation."""

from collections.abc import Callable
from typing import Any

from cleanrl_worker.agents.minigrid import MinigridAgent
from cleanrl_worker.agents.mlp import MLPAgent

__all__ = ["AGENTS", "Agent", "MLPAgent", "MinigridAgent"]

Agent = MLPAgent | MinigridAgent
AGENTS: dict[str, Callable[[Any, int], Agent]] = {"mlp": MLPAgent, "minigrid": MinigridAgent}
"""Each takes the observation shape and the number of actions; checkpoints store the key."""
