"""Runs a program that knows nothing of MOSAIC, in hooked processes, until it ends or has to, and judges how it ended.

An exit code proves nothing: a program that trained has reported episodes and losses.
"""

import contextlib
import ctypes
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from mosaic_worker.context import RunContext
from mosaic_worker.errors import WorkerError
from mosaic_worker.hooks import keeper
from mosaic_worker.hooks.counters import EPISODES, LOSSES, SCALARS, Counters
from mosaic_worker.hooks.reporter import describe_journal
from mosaic_worker.hooks.settings import VARIABLE, HookSettings, Link
from mosaic_worker.stdout import journal_for_child

__all__ = ["Ending", "ProgramError", "judge", "run_hooked"]

_STARTUP = Path(__file__).resolve().parent / "startup"
_KIT = Path(__file__).resolve().parents[2]
# Interval at which counters and stop requests are looked at.
_LOOK_EVERY_MS = 200
# Bytes of output kept for an error message, and lines of it that are shown.
_KEPT_BYTES = 16 * 1024
_SHOWN_LINES = 8
# Seconds to wait for the rest of the output; a descendant that escaped may hold the pipe open.
_JOIN_S = 5.0

Context = RunContext[Any]


class ProgramError(WorkerError):
    """The program failed; the message says how, with the last lines that it wrote."""


@dataclass(frozen=True)
class Ending:
    """How a program ended, and what it reported."""

    code: int
    seconds: float
    last_lines: list[str]
    reason: str | None
    steps: int
    episodes: int
    losses: int
    scalars: int

    def summary(self) -> dict[str, float]:
        """Return the summary for `run_completed`."""
        counts = {"steps": self.steps, "episodes": self.episodes, "scalars": self.scalars}
        return {**counts, "seconds": round(self.seconds, 3)}


def run_hooked(
    context: Context,
    command: list[str],
    settings: HookSettings,
    *,
    environ: Mapping[str, str] | None = None,
    on_line: Callable[[str], None] | None = None,
    look: Callable[[Counters], None] = lambda _: None,
) -> Ending:
    """Run a command in the run's folder to its end, with `environ` added to this process's variables.

    `on_line` gets each line of its stdout, and `look` is called about every `_LOOK_EVERY_MS`. A stop request ends it.
    """
    started = time.monotonic()
    with _counters(context.run_dir) as counters, _Lines(on_line) as stdout, _Lines() as stderr:
        # Orphans become our children, so that we can end them.
        ctypes.CDLL(None).prctl(keeper.PR_SET_CHILD_SUBREAPER, 1)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__, str(os.getpid()), *command],
            cwd=context.run_dir,
            stdin=subprocess.DEVNULL,
            stdout=stdout.write_end if on_line is not None else 2,
            stderr=stderr.write_end,
            **journal_for_child(context.emitter.fd, _environ(context, counters, settings, environ or {})),
        )
        stdout.start()
        stderr.start()
        try:
            _wait(context, process, counters, look)
        finally:
            process.terminate()
            process.wait()
            keeper.kill_descendants(keeper.LEFTOVER_GRACE_S)
            stdout.join()
            stderr.join()
            context.emitter.last_step = counters.step
        look(counters)
        return Ending(
            code=process.returncode,
            seconds=time.monotonic() - started,
            last_lines=stderr.last() or stdout.last(),
            reason=(counters.reason or {}).get("reason"),
            steps=counters.step,
            episodes=counters.total(EPISODES),
            losses=counters.total(LOSSES),
            scalars=counters.total(SCALARS),
        )


def judge(context: Context, name: str, ending: Ending) -> None:
    """Raise if the program was stopped, failed or trained nothing; warn if it looks odd."""
    context.stop.check()
    if ending.reason is not None:
        raise ProgramError(ending.reason)
    if ending.code != 0:
        last = ending.last_lines[-_SHOWN_LINES:]
        how = f"ended with exit code {ending.code}" if ending.code > 0 else f"was killed by signal {-ending.code}"
        raise ProgramError(f"{name} {how}: {last[-1] if last else 'it wrote no error'}" + _below(last[:-1]))
    if not ending.episodes and not ending.losses:
        raise ProgramError(
            f"{name} ended with exit code 0 but reported no episode and no loss: it trained nothing"
            + _below(ending.last_lines[-_SHOWN_LINES:])
        )
    for count, what in ((ending.episodes, "episode"), (ending.losses, "loss")):
        if not count:
            context.emitter.log("warning", f"{name} reported no {what} in {ending.steps} steps", step=ending.steps)


def _below(lines: list[str]) -> str:
    return "".join(f"\n  {line}" for line in lines)


def _wait(
    context: Context, process: subprocess.Popen[bytes], counters: Counters, look: Callable[[Counters], None]
) -> None:
    """Wait for the end of the process; end it if the run is stopped or a hook gave a reason."""
    poller = select.poll()
    descriptor = os.pidfd_open(process.pid)
    try:
        poller.register(descriptor, select.POLLIN)
        told = False
        while not poller.poll(_LOOK_EVERY_MS):
            context.emitter.last_step = counters.step
            look(counters)
            if not told and (context.stop.requested or counters.reason is not None):
                told = True
                process.terminate()
    finally:
        os.close(descriptor)


def _environ(context: Context, counters: Counters, settings: HookSettings, given: Mapping[str, str]) -> dict[str, str]:
    """The variables of the program: those given, the hooks', and where modules and this environment's Python are."""
    variables = {**os.environ, **given}
    folders = [_STARTUP, _KIT, variables.get("PYTHONPATH")]
    link = Link(str(counters.folder), describe_journal(context.emitter.fd), settings)
    return {
        **variables,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONPATH": os.pathsep.join(str(folder) for folder in folders if folder),
        "PYTHONUNBUFFERED": "1",
        "MOSAIC_RUN_DIR": str(context.run_dir),
        "MOSAIC_SEED": str(context.config.seed),
        VARIABLE: link.to_variable(),
    }


@contextlib.contextmanager
def _counters(run_dir: Path) -> Iterator[Counters]:
    folder = tempfile.mkdtemp(prefix=".training-", dir=run_dir)  # a killed worker may have left one
    try:
        yield Counters(folder, create=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class _Lines:
    """Copies the output of a process to the run's log, and keeps the last lines."""

    def __init__(self, on_line: Callable[[str], None] | None = None) -> None:
        self._on_line = on_line
        self._read_end, self.write_end = os.pipe()
        self._last = b""
        self._thread = threading.Thread(target=self._copy, daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close_write_end()
        if not self._thread.is_alive():
            os.close(self._read_end)

    def start(self) -> None:
        """Begin to copy; the process has its own copy of the write end."""
        self._close_write_end()
        self._thread.start()

    def join(self) -> None:
        """Wait until everything is copied."""
        self._thread.join(_JOIN_S)

    def last(self) -> list[str]:
        """Return the last lines that are not empty."""
        return [line for line in self._last.decode(errors="replace").splitlines() if line.strip()]

    def _close_write_end(self) -> None:
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    def _copy(self) -> None:
        rest = b""
        while data := os.read(self._read_end, 1 << 16):
            self._last = (self._last + data)[-_KEPT_BYTES:]
            with contextlib.suppress(OSError):
                os.write(2, data)
            if self._on_line is not None:
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    self._on_line(line.decode(errors="replace"))
