"""A person as an operator: waits for a move, checks it, and falls back on a declared default when time is up."""

import threading
import time
from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from arena_worker.games import Game, Turn
from arena_worker.process import PolicyError
from arena_worker.seats import Decision, Seat
from mosaic_worker.errors import RequestError

__all__ = ["HumanConfig", "HumanSeat", "OvertakenError"]


class HumanConfig(BaseModel):
    """The config of a human operator."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    timeout_s: float | None = Field(default=None, gt=0, description="Seconds for a move; none: no limit")
    default: Literal["noop", "random_legal", "forfeit"] = Field(default="noop", description="The move when time is up")
    confirm: bool = Field(default=False, description="A move counts when it is given a second time")
    keys: dict[str, int] = Field(default_factory=dict, description="A key for each action")


class OvertakenError(Exception):
    """A reset, or the end of the session, came while a person was asked: the move is not wanted any more."""


class HumanSeat(Seat):
    """An agent whose moves come from requests; `offer` is called by another thread than `wait`."""

    def __init__(self, operator: str, agent: str, game: Game, config: HumanConfig) -> None:
        """Take the seat."""
        super().__init__(operator, agent, game)
        self.config = config
        if config.keys and self.moves.count:
            keys = {action: key for key, action in config.keys.items()}
            known = self.moves.keys or [None] * self.moves.count
            self.moves.keys = [keys.get(action, known[index]) for index, action in enumerate(self.moves.actions)]
        self._condition = threading.Condition()
        self._turn: Turn | None = None
        self._move: Any = None
        self._unconfirmed: Any = None

    def ask(self, turn: Turn) -> None:
        """Say that it is this person's turn."""
        with self._condition:
            self._turn, self._move, self._unconfirmed = turn, None, None

    @property
    def is_asked(self) -> bool:
        """Whether it is this person's turn."""
        return self._turn is not None

    def wait(self, is_overtaken: Callable[[], bool]) -> Decision:
        """Wait for the move; PolicyError when time is up, OvertakenError once it is not wanted any more.

        `wake` has to be called when `is_overtaken` becomes true.
        """
        timeout = self.config.timeout_s
        deadline = None if timeout is None else time.monotonic() + timeout
        with self._condition:
            while self._move is None and not is_overtaken():
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    self._turn = None
                    raise PolicyError("hung", f"no move of {self.agent} within {timeout:g} s")
                self._condition.wait(left)
            self._turn = None
            if is_overtaken():
                raise OvertakenError
            return Decision(self._move)

    def offer(self, given: Any) -> dict[str, Any]:
        """Take a move: an action, its name or a key of the config. Return what was understood.

        RequestError if it is illegal.
        """
        with self._condition:
            if self._turn is None:
                raise RequestError(f"it is not the turn of {self.agent}")
            try:
                action = self.moves.legal(self._understood(given), self._turn.mask)
            except PolicyError as error:
                raise RequestError(str(error)) from error
            label = self.moves.label(action)
            if self.config.confirm and self._unconfirmed != label:
                self._unconfirmed = label
                return {"type": "confirm", "agent": self.agent, "action": action, "label": label}
            self._move = action
            self._condition.notify_all()
            return {"type": "accepted", "agent": self.agent, "action": action, "label": label}

    def action_of(self, key: Any) -> Any:
        """Return the action that a key plays; RequestError if there is none."""
        moves = self.moves.legal_moves(None) or []
        found = [move["action"] for move in moves if key is not None and move["key"] == key]
        if not found:
            known = ", ".join(str(move["key"]) for move in moves if move["key"] is not None)
            raise RequestError(f"key {key!r} plays no action; the keys are: {known or 'none'}")
        return found[0]

    def withdraw(self) -> dict[str, Any]:
        """Forget a move that is not confirmed yet."""
        with self._condition:
            self._unconfirmed = None
        return {"type": "input_cancelled", "agent": self.agent}

    def wake(self) -> None:
        """Take no move any more until asked again, and have a wait look whether it is overtaken."""
        with self._condition:
            self._turn = None
            self._condition.notify_all()

    def _understood(self, given: Any) -> Any:
        if not isinstance(given, str):
            return given
        legal = self.moves.legal_moves(None) or []
        named = [move["action"] for move in legal if move["label"].lower() == given.lower()]
        if given in self.config.keys or len(named) == 1:
            return self.config.keys.get(given, named[0] if named else None)
        if given.lstrip("-").isdigit():
            return int(given)
        raise RequestError(f"move {given!r} is no action: give its number, its name or its key")
