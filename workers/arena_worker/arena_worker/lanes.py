"""A lane: one environment, and the episode that is being played in it."""

import hashlib
import time
from typing import Any

import numpy as np

from arena_worker.games import Game, Turn
from arena_worker.seats import Seat
from arena_worker.seeds import Seeds
from arena_worker.videos import Video
from mosaic_worker.errors import WorkerError

__all__ = ["GameError", "Lane"]

_TRAIL = 1 << 16
"""Bytes of actions that are kept before they are hashed: many small updates of a hash are slow."""


class GameError(WorkerError):
    """The environment raised an error."""


class Lane:
    """One environment and its episode: who has to move, what was decided, and what came of it."""

    def __init__(self, index: int, game: Game) -> None:
        """Play in `game`."""
        self.index = index
        self.game = game
        self.generation = 0
        """Grows with every episode, so that answers to an abandoned one are recognised."""
        self.is_playing = False
        self.due = 0.0
        """When its next step may be taken."""

    def start(
        self, episode: int, seeds: Seeds, seats: dict[str, Seat], *, keeps_steps: bool, video: Video | None
    ) -> None:
        """Prepare for an episode; `reset` begins it."""
        self.episode = self.game.episode = episode
        self.generation += 1
        self.is_playing = True
        self.env_seed = seeds.environment(episode)
        self.seeds = seeds.agents(episode)
        self.generator = np.random.default_rng(seeds.arena(episode))
        self.length = 0
        self.totals = dict.fromkeys(self.game.agents, 0.0)
        self.failures: list[dict[str, Any]] = []
        self.reports: dict[str, Any] = {}
        """What policies told last about their part in the episode, by agent."""
        self.said: dict[str, str] = {}
        """The words with which policies gave their answers in this step, by agent."""
        self.tried: dict[str, int] = {}
        self.actions: dict[str, Any] = {}
        self.turns: dict[str, Turn] = {}
        self.steps: list[dict[str, Any]] | None = [] if keeps_steps else None
        self.video = video
        self._legal = {agent: seat.moves.legal for agent, seat in seats.items()}
        self._hashed = {agent: (agent.encode() + b"\0", seat.moves.hashed) for agent, seat in seats.items()}
        self._hash = hashlib.sha256()
        self._trail = bytearray()
        self._began = time.monotonic()
        self.losers: set[str] = set()

    def reset(self) -> None:
        """Reset the environment."""
        try:
            self.turns = self.game.reset(self.env_seed)
        except Exception as error:
            raise self._raised("the reset", error) from error
        self._earn()
        if self.video is not None:
            self.video.add(self.game)

    def decide(self, agent: str, action: Any) -> bool:
        """Take the action of an agent, if it is legal (else PolicyError); return whether all have decided."""
        self.actions[agent] = self._legal[agent](action, self.turns[agent].mask)
        return len(self.actions) == len(self.turns)

    def owes_move(self, agent: str) -> bool:
        """Whether an agent has to move, and has not decided yet."""
        return agent in self.turns and agent not in self.actions

    def move(self) -> str | None:
        """Carry out the moves of all; return how the episode has ended, if it has."""
        actions, trail = self.actions, self._trail
        for agent in self.turns:  # in the environment's order, whoever answered first
            name, hashed = self._hashed[agent]
            trail += name
            trail += hashed(actions[agent])
        if len(trail) > _TRAIL:
            self._hash.update(trail)
            trail.clear()
        try:
            self.turns = self.game.move(actions)
        except Exception as error:
            raise self._raised(f"step {self.length}", error) from error
        self._earn()
        if self.steps is not None:
            step = {"step": self.length, "actions": actions, "rewards": dict(self.game.rewards)}
            self.steps.append({**step, "said": self.said} if self.said else step)
        if self.video is not None:
            self.video.add(self.game)
        if self.tried:
            self.tried.clear()
        if self.said:
            self.said = {}
        self.actions = {}
        self.length += 1
        return self.game.ended or (None if self.turns else "terminated")

    def _raised(self, doing: str, error: Exception) -> GameError:
        where = f"episode {self.episode} (seed {self.env_seed}), {doing}"
        return GameError(f"the environment raised in {where}: {type(error).__name__}: {error}")

    def _earn(self) -> None:
        totals = self.totals
        for agent, reward in self.game.rewards.items():
            totals[agent] += reward

    def finish(self, ended: str) -> dict[str, Any]:
        """End the episode; return its record, but for lineup and numerics."""
        self.is_playing = False
        self._hash.update(self._trail)
        if ended in {"max_steps", "forfeit", "failed"}:
            for agent, reward in self.game.late_rewards().items():
                self.totals[agent] += reward
        told = {"reports": self.reports} if self.reports else {}
        return {
            "episode": self.episode,
            "env_seed": self.env_seed,
            "seeds": self.seeds,
            "returns": self.totals,
            "length": self.length,
            "ended": ended,
            "winners": None if ended == "failed" else self.game.sides.winners(self.totals, self.losers),
            "failures": self.failures,
            "action_hash": self._hash.hexdigest(),
            **told,
            "timing": {"s": round(time.monotonic() - self._began, 4)},
        }

    def abandon(self) -> None:
        """Leave the episode; it will be played again."""
        self.is_playing = False
        self.generation += 1
