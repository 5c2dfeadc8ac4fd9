"""Waiting for what happens, but not for ever: the supervisor's tasks sleep until there is something to do."""

from __future__ import annotations

import asyncio

__all__ = ["wait"]


async def wait(event: asyncio.Event, seconds: float, at_least: float = 0.0) -> None:
    """Wait for an event, but neither longer than `seconds` nor shorter than `at_least`; then it is clear again."""
    await asyncio.sleep(at_least)
    if seconds > 0 and not event.is_set():
        try:
            async with asyncio.timeout(seconds):
                await event.wait()
        except TimeoutError:
            pass
    event.clear()
