"""Seeds: each depends on the experiment's root, the episode and the stream, and on nothing else."""

from collections.abc import Sequence

import numpy as np

from arena_worker.config import SeedConfig

__all__ = ["Seeds"]

_LARGEST = 0x7FFF_FFFF
"""Some environments take no seed above this."""


class Seeds:
    """The seeds of an episode: stream 0 is the environment, 1 the arena's own choices, then the agents."""

    def __init__(self, config: SeedConfig, agents: Sequence[str]) -> None:
        """Give each agent a stream, in the order in which the environment names them."""
        self._config = config
        self._streams = {agent: number for number, agent in enumerate(agents, start=2)}

    def environment(self, episode: int) -> int:
        """Return the seed with which the environment is reset."""
        values = self._config.values
        if self._config.mode == "fixed":
            return values[0]
        if self._config.mode == "list":
            return values[episode] if episode < len(values) else values[-1] + episode - len(values) + 1
        return self._draw(episode, 0)

    def arena(self, episode: int) -> int:
        """Return the seed of moves that the arena makes in the place of a policy."""
        return self._draw(episode, 1)

    def agents(self, episode: int) -> dict[str, int]:
        """Return the seed of each agent's policy."""
        return {agent: self._draw(episode, stream) for agent, stream in self._streams.items()}

    def _draw(self, episode: int, stream: int) -> int:
        sequence = np.random.SeedSequence(self._config.root, spawn_key=(episode, stream))
        return int(sequence.generate_state(1)[0]) & _LARGEST
