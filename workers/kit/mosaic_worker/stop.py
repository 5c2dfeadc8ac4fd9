"""Turns SIGTERM and SIGINT into a stop request that a worker polls."""

import os
import signal
import threading
from types import FrameType

from mosaic_worker.emitter import Emitter
from mosaic_worker.errors import RunCancelled
from mosaic_worker.stdout import note

__all__ = ["EXIT_STOPPED", "Stop"]

EXIT_STOPPED = 143
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stop:
    """Whether and why the run was asked to stop.

    The first signal sets `requested`; with `raise_in_main` it also raises RunCancelled in the main thread, for
    libraries whose loop cannot poll. A second signal ends the process at once, with exit code 143.
    """

    def __init__(self, emitter: Emitter | None = None, *, raise_in_main: bool = False) -> None:
        """Prepare; `install` sets the signal handlers."""
        self.requested = False
        self.reason: str | None = None
        self.raise_in_main = raise_in_main
        self._emitter = emitter
        self._pid = os.getpid()

    def install(self) -> None:
        """Handle SIGTERM and SIGINT. In any thread but the main one this does nothing."""
        if threading.current_thread() is threading.main_thread():
            self._pid = os.getpid()
            for number in _SIGNALS:
                signal.signal(number, self._on_signal)

    def release(self) -> None:
        """Ignore further signals: the terminal event is written, and the exit code has to match it."""
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                signal.signal(number, signal.SIG_IGN)

    def request(self, reason: str) -> None:
        """Ask the run to stop, as a signal would, without interrupting it."""
        if not self.requested:
            self.reason = reason
            self.requested = True

    def check(self) -> None:
        """Raise RunCancelled if the run was asked to stop. Call it once per step or update."""
        if self.requested:
            raise RunCancelled(self.reason or "stop requested")

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a forked child, such as a vector environment: it just ends
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        name = signal.Signals(number).name
        if self.requested:
            self._exit_now(f"{name} again")
        self.request(name)
        if self.raise_in_main:
            error = RunCancelled(name)
            if self._emitter is None:
                raise error
            self._emitter.interrupt(error)

    def _exit_now(self, reason: str) -> None:
        if self._emitter is not None:
            step = self._emitter.last_step
            fields = {"reason": reason} if step is None else {"reason": reason, "step": step}
            self._emitter.last_words("run_cancelled", **fields)
        note(f"{reason}, exiting at once")
        os._exit(EXIT_STOPPED)
