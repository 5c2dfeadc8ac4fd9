"""Ends the process when an environment does not return: nothing else could end such a wait."""

import os
import threading
import time
from collections.abc import Callable

from arena_worker.games import Game
from mosaic_worker.cli import EXIT_FAILED
from mosaic_worker.emitter import Emitter

__all__ = ["Watchdog"]

_LOOKS = 8
"""How often it looks within the time that a step may take."""
_LONGEST_S = 5.0


class Watchdog(threading.Thread):
    """Looks at the environments of a run from a thread of its own."""

    def __init__(self, games: list[Game], limit_s: float, emitter: Emitter, close: Callable[[], None]) -> None:
        """Watch `games`, to which more may be added; `close` ends the policies, which would be left behind."""
        super().__init__(name="watchdog", daemon=True)
        self._games = games
        self._limit_s = limit_s
        self._emitter = emitter
        self._close = close
        self._ended = threading.Event()

    def run(self) -> None:
        """Look until `stop`."""
        while not self._ended.wait(min(_LONGEST_S, self._limit_s / _LOOKS)):
            for game in list(self._games):
                since = game.busy_since
                if since is not None and time.monotonic() - since > self._limit_s:
                    self._bite(game)

    def stop(self) -> None:
        """End the thread."""
        self._ended.set()

    def _bite(self, game: Game) -> None:
        said = f"the environment {game.doing} did not return within {self._limit_s:g} s"
        self._close()
        self._emitter.log("error", said)
        self._emitter.run_failed("infrastructure", said)
        os._exit(EXIT_FAILED)
