"""A game of two for `bench eval`: about 30 us a move, and nothing to install."""

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

__all__ = ["env", "parallel_env"]

AGENTS = ["first", "second"]
LENGTH = 500
_MOVE_S = 30e-6


class _Game:
    def __init__(self) -> None:
        self.possible_agents = list(AGENTS)
        self.unwrapped = self

    def observation_space(self, _agent: str) -> spaces.Box:
        return spaces.Box(-np.inf, np.inf, (4,), np.float32)

    def action_space(self, _agent: str) -> spaces.Discrete:
        return spaces.Discrete(2)

    def _begin(self, seed: int | None) -> None:
        self.agents = list(AGENTS)
        self._generator = np.random.default_rng(seed)
        self.state = self._generator.standard_normal(4).astype(np.float32)
        self._step = 0

    def _advance(self, moves: int) -> None:
        until = time.perf_counter() + _MOVE_S  # a busy wait: it stands for an environment that computes
        self.state = self.state + np.float32(0.01) * (moves - 1)
        self._step += 1
        while time.perf_counter() < until:
            pass

    def close(self) -> None:
        """Nothing to close."""


class TurnGame(_Game):
    """The two move in turn."""

    def reset(self, seed: int | None = None) -> None:
        self._begin(seed)
        self.agent_selection = AGENTS[0]

    def last(self) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.state, 0.0, self._step >= LENGTH, False, {}

    def step(self, action: int | None) -> None:
        if action is None:
            self.agents.remove(self.agent_selection)
        else:
            self._advance(action)
        if self.agents:
            self.agent_selection = self.agents[self._step % len(self.agents)]


class ParallelGame(_Game):
    """The two move at once."""

    def reset(self, seed: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self._begin(seed)
        return dict.fromkeys(AGENTS, self.state), {agent: {} for agent in AGENTS}

    def step(self, actions: Mapping[str, int]) -> tuple[dict[str, Any], ...]:
        self._advance(sum(actions.values()))
        over = self._step >= LENGTH
        if over:
            self.agents = []
        ended, not_cut = dict.fromkeys(AGENTS, over), dict.fromkeys(AGENTS, False)
        seen = dict.fromkeys(AGENTS, self.state)
        return seen, dict.fromkeys(AGENTS, 0.0), ended, not_cut, {agent: {} for agent in AGENTS}


def env() -> TurnGame:
    """Make the game of turns."""
    return TurnGame()


def parallel_env() -> ParallelGame:
    """Make the simultaneous game."""
    return ParallelGame()
