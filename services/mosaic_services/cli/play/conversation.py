"""A conversation with a session: requests go through the operator service, answers come from the run's journal."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

import orjson

from mosaic_bus import topics
from mosaic_bus.commands import Events, Show, TellSession
from mosaic_bus.errors import CommandRefusedError
from mosaic_bus.refusals import RefusalCode
from mosaic_services.cli.errors import CliError
from mosaic_services.cli.wait.runs import outcome_lines

if TYPE_CHECKING:
    from mosaic_bus import Bus
    from mosaic_bus.messages import RunState

__all__ = ["Conversation"]

_LOOK_S = 1.0
_PAUSE_S = 0.2


class Conversation:
    """Sends requests and yields what the boards say, each once and in order."""

    def __init__(self, bus: Bus, session: str) -> None:
        self.session = session
        self._bus = bus
        self._heard = bus.subscribe(topics.journal(session), max_queue=10_000)
        self._waiting: deque[dict[str, Any]] = deque()
        # The number of the next journal line. What came before the subscription is asked for.
        self._next = 0
        self._number = 0
        self._looked_at = 0.0
        self._caught_up_at = 0.0

    def ask(self, **request: Any) -> None:
        """Send a request, as soon as the session listens."""
        self._number += 1
        line = {**request, "id": self._number}
        while True:
            try:
                self._bus.request("operator", TellSession(session=self.session, request=line))
            except CommandRefusedError as error:
                if error.code not in {RefusalCode.NOT_STARTED, RefusalCode.UNKNOWN_ATTEMPT}:
                    raise
                self._require_alive()
                time.sleep(_PAUSE_S)
            else:
                return

    def listen(self, timeout: float) -> dict[str, Any] | None:
        """The next thing that a board says, or the answer to a request; None if nothing came in time."""
        deadline = time.monotonic() + timeout
        while not self._waiting:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            message = self._bus.wait_for(self._heard, min(left, _LOOK_S))
            if message is None:
                if time.monotonic() - self._caught_up_at >= _LOOK_S:
                    self._catch_up()
                    self._require_alive()
            elif message.payload.get("first", 0) > self._next:
                self._catch_up()
            else:
                self._take(message.payload["first"], message.buffers[0].splitlines())
        return self._waiting.popleft()

    def close(self) -> None:
        """Stop listening."""
        self._bus.unsubscribe(self._heard)

    def _take(self, first: int, lines: list[bytes]) -> None:
        for number, line in enumerate(lines, start=first):
            if number >= self._next:
                self._next = number + 1
                self._read(line)

    def _read(self, line: bytes | str) -> None:
        event = orjson.loads(line) if b"reply" in (line if isinstance(line, bytes) else line.encode()) else {}
        if event.get("event") == "reply" and isinstance(event.get("reply"), dict):
            self._waiting.append(event["reply"])

    def _catch_up(self) -> None:
        """Ask the store for lines that were missed."""
        self._caught_up_at = time.monotonic()
        try:
            rows = self._bus.request("telemetry", Events(run=self.session, start=self._next)).rows
        except CommandRefusedError:  # nothing is stored yet
            return
        for row in rows:
            if row["number"] >= self._next:
                self._next = row["number"] + 1
                self._read(row["line"])

    def _require_alive(self) -> None:
        if time.monotonic() - self._looked_at < _LOOK_S:
            return
        self._looked_at = time.monotonic()
        state: RunState = self._bus.request("scheduler", Show(run=self.session)).run
        if state.state.final and not self._waiting:
            said = outcome_lines(self._bus, state)
            raise CliError(f"the session has ended: {said[0]}", "\n".join(said[1:]))
