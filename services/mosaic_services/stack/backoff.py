"""Exponential back-off for restarting a service that died."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Backoff"]


@dataclass
class Backoff:
    """Delays double from `first_s` to `most_s`; a process that lived for `reset_after_s` resets them."""

    first_s: float
    most_s: float
    reset_after_s: float = 30.0
    _next_s: float = 0.0

    def delay(self, alive_s: float) -> float:
        """Seconds before the next start, given how long the process lived."""
        if alive_s >= self.reset_after_s or not self._next_s:
            self._next_s = self.first_s
        delay = self._next_s
        self._next_s = min(self.most_s, delay * 2)
        return delay
