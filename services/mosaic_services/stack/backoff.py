"""When a service that died is started again: at once, then later and later, and at once again after a long life."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Backoff"]


@dataclass
class Backoff:
    """Delays that double from `first_s` to `most_s`; a life of `reset_after_s` starts them anew."""

    first_s: float
    most_s: float
    reset_after_s: float = 30.0
    _next_s: float = 0.0

    def delay(self, alive_s: float) -> float:
        """Seconds to wait before the next start, given how long the process lived."""
        if alive_s >= self.reset_after_s or not self._next_s:
            self._next_s = self.first_s
        delay = self._next_s
        self._next_s = min(self.most_s, delay * 2)
        return delay
