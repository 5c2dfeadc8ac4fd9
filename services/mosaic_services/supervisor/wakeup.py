"""An event that wakes a task before its time."""

from __future__ import annotations

import asyncio

__all__ = ["WakeUp"]


class WakeUp:
    """An event that one task waits for with a time-out; each wait clears it."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """Wake the task, or let its next wait return at once."""
        self._event.set()

    async def wait(self, seconds: float, at_least: float = 0.0) -> None:
        """Wait until the event is set, at least `at_least` and about `seconds` at most."""
        await asyncio.sleep(at_least)
        if seconds > 0 and not self._event.is_set():
            try:
                async with asyncio.timeout(seconds):
                    await self._event.wait()
            except TimeoutError:
                pass
        self._event.clear()
