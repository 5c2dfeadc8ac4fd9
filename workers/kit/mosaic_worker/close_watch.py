"""Looks for input closely for a moment, in place of sleeping at once."""

import os
import select
import time

__all__ = ["CloseWatch"]

_MOMENT_S = 300e-6
_MOST_LEFT_OUT = 63
"""How many moments are left out at most after those that found nothing."""


class CloseWatch:
    """Looks for input again and again for a moment: to sleep and be woken takes longer than most decisions.

    Moments that find nothing are a waste, so they become rarer. With only one CPU there are none: whoever is waited for
    needs it. Linux lets others go first within a session only, so whoever makes a watch sees to it that there is room.
    """

    def __init__(self) -> None:
        """Begin with a look."""
        self._is_able = len(os.sched_getaffinity(0)) > 1
        self._missed = self._left_out = 0

    def look(self, poll: select.poll) -> list[tuple[int, int]]:
        """Return what is ready; nothing if it does not come within a moment."""
        if not self._is_able:
            return []
        if self._left_out:
            self._left_out -= 1
            return []
        until = time.perf_counter() + _MOMENT_S
        while not (ready := poll.poll(0)):
            if time.perf_counter() >= until:
                self._missed = min(2 * self._missed + 1, _MOST_LEFT_OUT)
                self._left_out = self._missed
                return []
            os.sched_yield()
        self._missed = 0
        return ready
