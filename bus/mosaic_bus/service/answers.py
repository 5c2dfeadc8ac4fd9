"""The answers that a service has given, so that a repeated command is not carried out twice."""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["AnswerBook"]

_MOST_ANSWERS = 20_000
# Large answers belong to queries, which can be computed again; small ones confirm changes.
_LARGE_BYTES = 8 * 1024
_MOST_LARGE_BYTES = 16 * 1024 * 1024


class AnswerBook:
    """The newest answers by the id of their command, in bounded memory."""

    def __init__(self) -> None:
        self._begun: set[str] = set()
        self._small: OrderedDict[str, bytes] = OrderedDict()
        self._large: OrderedDict[str, bytes] = OrderedDict()
        self._large_bytes = 0

    def knows(self, command_id: str) -> bool:
        """Whether a command is or was carried out."""
        return command_id in self._begun or self.find(command_id) is not None

    def begin(self, command_id: str) -> bool:
        """Note that a command is being carried out; False if it is or was already."""
        if self.knows(command_id):
            return False
        self._begun.add(command_id)
        return True

    def find(self, command_id: str) -> bytes | None:
        """The encoded answer to a command; None if it is not known yet or was forgotten."""
        return self._small.get(command_id) or self._large.get(command_id)

    def finish(self, command_id: str, answer: bytes) -> None:
        """Keep the encoded answer to a command."""
        self._begun.discard(command_id)
        if len(answer) <= _LARGE_BYTES:
            self._small[command_id] = answer
            if len(self._small) > _MOST_ANSWERS:
                self._small.popitem(last=False)
            return
        self._large[command_id] = answer
        self._large_bytes += len(answer)
        while self._large_bytes > _MOST_LARGE_BYTES and len(self._large) > 1:  # the newest has yet to be sent
            self._large_bytes -= len(self._large.popitem(last=False)[1])

    def abandon(self, command_id: str) -> None:
        """Forget a command that was not finished: it may be tried again."""
        self._begun.discard(command_id)
