"""A heartbeat shows readers that a run without other events is alive."""

import os
import threading
import time
from collections.abc import Callable, Mapping

from mosaic_worker.emitter import Emitter

__all__ = ["Heartbeat", "interval_from"]

DEFAULT_INTERVAL_S = 30.0


def interval_from(environ: Mapping[str, str]) -> float:
    """Read the interval from MOSAIC_HEARTBEAT_S; anything but a positive number means the default of 30 seconds."""
    try:
        seconds = float(environ.get("MOSAIC_HEARTBEAT_S", ""))
    except ValueError:
        return DEFAULT_INTERVAL_S
    return seconds if 0 < seconds < threading.TIMEOUT_MAX else DEFAULT_INTERVAL_S


class Heartbeat:
    """A daemon thread that emits `heartbeat` at an interval, with the time since the start and the last step."""

    def __init__(
        self, emitter: Emitter, interval_s: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Prepare the thread; `start` starts it."""
        self._emitter = emitter
        self._interval_s = interval_from(os.environ) if interval_s is None else interval_s
        self._clock = clock
        self._started = clock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="mosaic-heartbeat", daemon=True)

    def start(self) -> None:
        """Start beating; the first beat comes after one interval."""
        self._thread.start()

    def stop(self) -> None:
        """Stop beating, without waiting: after a terminal event the emitter drops a late beat."""
        self._stopped.set()

    def _beat(self) -> None:
        while not self._stopped.wait(self._interval_s):
            uptime_s = round(self._clock() - self._started, 3)
            try:
                self._emitter.heartbeat(uptime_s=uptime_s, step=self._emitter.last_step)
            except OSError:  # the journal is gone; the main thread notices at its next event
                return
