"""A service as a child process: its start, its log, its restarts; and the signals that its parent waits for."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import orjson

if TYPE_CHECKING:
    from pathlib import Path

    from mosaic_services.stack.backoff import Backoff
    from mosaic_services.stack.services import ServiceRow

__all__ = ["Child", "Signals", "how_it_ended"]

_PR_SET_PDEATHSIG = 1
# Looked up once, here: nothing may be imported or allocated between fork and exec.
_prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else None
_LOG_TAIL_BYTES = 20_000


def _die_with(parent: int, number: int) -> None:
    """Have the kernel signal this process when its parent dies."""
    if _prctl is not None:
        _prctl(_PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:  # it died before prctl
            os._exit(0)


@dataclass
class Child:
    """One service: how to start it, and its current process."""

    row: ServiceRow
    bus_name: str
    arguments: list[str]
    log: Path
    largest_log_bytes: int
    backoff: Backoff
    # The signal that the kernel sends it when we die without having stopped it.
    orphaned_by: int = signal.SIGTERM
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    restart_at: float | None = None
    restarts: int = 0
    _log_start: int = 0

    def start(self) -> None:
        """Start the process with its output in the log, in its own process group: Ctrl-C must reach only us."""
        self.restart_at = None
        self.started = time.monotonic()
        with contextlib.suppress(FileNotFoundError):
            if self.log.stat().st_size > self.largest_log_bytes:
                self.log.replace(self.log.with_suffix(".log.1"))
        parent = os.getpid()
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self.process = subprocess.Popen(
                [sys.executable, "-m", self.row.module, *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                process_group=0,
                preexec_fn=lambda: _die_with(parent, self.orphaned_by),  # noqa: PLW1509 - no other thread is alive when a service is started
            )

    @property
    def name(self) -> str:
        """The name of the service in the table."""
        return self.row.name

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self.process is not None and self.process.poll() is None

    @property
    def code(self) -> int | None:
        """The exit code: negative for a signal, None while it runs."""
        return self.process.poll() if self.process else None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid if self.process else 0

    def schedule_restart(self, now: float) -> float:
        """Schedule the restart and return the delay in seconds."""
        delay = self.backoff.delay(now - self.started)
        self.restart_at = now + delay
        self.restarts += 1
        return delay

    def signal(self, number: int) -> None:
        """Send a signal if it still runs."""
        if self.process is not None and self.running:
            self.process.send_signal(number)

    def last_words(self, lines: int = 8) -> list[str]:
        """The last lines that it logged since its start, in readable form."""
        try:
            with self.log.open("rb") as file:
                end = file.seek(0, os.SEEK_END)
                file.seek(max(self._log_start, end - _LOG_TAIL_BYTES))
                text = file.read().decode(errors="replace")
        except FileNotFoundError:
            return []
        readable = [line for each in text.splitlines() for line in _readable(each)]
        return readable[-lines:]

    def reason(self) -> str:
        """Why it could not run: its own message if it logged one."""
        for line in reversed(self.last_words()):
            if line.startswith("cannot run: "):
                return line.removeprefix("cannot run: ")
        words = self.last_words(1)
        return words[0] if words else how_it_ended(self.code)


def _readable(line: str) -> list[str]:
    """Convert a line of a JSON log to readable lines; other lines are unchanged."""
    try:
        entry = orjson.loads(line)
    except orjson.JSONDecodeError:
        return [line]
    if not isinstance(entry, dict) or "event" not in entry:
        return [line]
    said = entry.get("reason") or entry.get("detail") or ""
    head = f"{entry['event']}: {said}" if said else str(entry["event"])
    return [head, *str(entry.get("exception", "")).splitlines()]


def how_it_ended(code: int | None) -> str:
    """Describe an exit code: `was killed by SIGKILL`, `exited with 1`."""
    if code is None:
        return "still runs"
    if code < 0:
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"
    return f"exited with {code}"


class Signals:
    """Waits for signals, SIGCHLD included, without polling."""

    def __init__(self, *numbers: int) -> None:
        self._read, self._write = os.pipe()
        for end in (self._read, self._write):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for each in numbers:
            signal.signal(each, lambda *_: None)

    def wait(self, timeout: float | None) -> list[int]:
        """Return the signals that arrived, after at most `timeout` seconds."""
        select.select([self._read], [], [], timeout)
        with contextlib.suppress(BlockingIOError):
            return list(os.read(self._read, 4096))
        return []
