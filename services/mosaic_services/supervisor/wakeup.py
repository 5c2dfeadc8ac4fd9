"""A wake-up call for a task that otherwise sleeps for a while."""

from __future__ import annotations

import asyncio

__all__ = ["WakeUp"]


class WakeUp:
    """An event that one task waits for, with a deadline; it is clear again after each wait."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        """Wake the task, now or when it next waits."""
        self._event.set()

    async def wait(self, seconds: float, at_least: float = 0.0) -> None:
        """Wait until set, but neither longer than `seconds` nor shorter than `at_least`."""
        await asyncio.sleep(at_least)
        if seconds > 0 and not self._event.is_set():
            try:
                async with asyncio.timeout(seconds):
                    await self._event.wait()
            except TimeoutError:
                pass
        self._event.clear()
