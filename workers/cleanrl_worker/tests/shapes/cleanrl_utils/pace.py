"""How fast a training goes, and how fast the machine was meanwhile.

A shared machine is a third slower in one minute than in the next. So the script stops now and then to do a fixed piece
of its own work, the ruler: whoever compares two runs can tell a slow script from a slow moment.
"""

import time


class Pace:
    """Counts steps and time between the times when the ruler is laid on."""

    def __init__(self, work, times=60):
        self._work, self._times = work, times
        self._since = None
        self._steps = self._laps = 0
        self._wall = self._ruler = 0.0

    def lap(self, step):
        """Count what was done since the last call, then lay the ruler on."""
        if self._since is not None:
            self._steps += step - self._since[0]
            self._wall += time.perf_counter() - self._since[1]
        began = time.process_time()
        for _ in range(self._times):
            self._work()
        self._ruler += time.process_time() - began
        self._laps += 1
        self._since = (step, time.perf_counter())

    def __str__(self):
        """What a bench reads: steps per second, and steps in the time that a ruler takes to compute."""
        if not self._steps:
            return "too short to tell its pace"
        rate = self._steps / self._wall
        return f"steps per second: {rate:.1f}, per ruler: {rate * self._ruler / self._laps:.3f}"
