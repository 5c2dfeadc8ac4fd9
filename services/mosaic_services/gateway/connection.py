"""One HTTP connection, which is closed if no whole request comes on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

__all__ = ["Connection"]


class Connection(H11Protocol):
    """Closes itself if nothing is asked: uvicorn lets silent clients, which need no token, lock all others out.

    Its own limit begins after the first answer, and each byte of the next request lifts it.
    """

    silence_s = 15.0
    """Time from the beginning, or from an answer, to the end of the head of the next request."""
    _silence: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._await_request()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        super().connection_lost(exc)
        self._stop_waiting()

    def _await_request(self) -> None:
        self._stop_waiting()
        self._silence = self.loop.call_later(self.silence_s, self._close_if_silent)

    def _stop_waiting(self) -> None:
        if self._silence is not None:
            self._silence.cancel()

    def _close_if_silent(self) -> None:
        # uvicorn declares no None, but there is no cycle before the first request.
        is_asked = self.cycle is not None and not self.cycle.response_complete  # type: ignore[redundant-expr]
        # A WebSocket has left the HTTP connections, and has limits of its own.
        if self in self.connections and not is_asked:
            self.transport.close()
