"""Runs upstream code in a process of its own, hooked, until it ends or has to, and judges how it ended.

An exit code proves nothing for these scripts: one that trained has reported episodes and losses.
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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from cleanrl_worker import keeper
from cleanrl_worker.analytics import report_files
from cleanrl_worker.checks import library
from cleanrl_worker.config import CleanRLWorkerConfig
from cleanrl_worker.counters import EPISODES, LOSSES, SCALARS, Counters
from cleanrl_worker.fastlane import lane_variables
from cleanrl_worker.telemetry import COUNTERS, JOURNAL, describe_journal
from mosaic_worker.context import RunContext
from mosaic_worker.errors import WorkerError
from mosaic_worker.stdout import journal_for_child

__all__ = ["Ending", "UpstreamError", "judge", "run_upstream"]

_PACKAGE = Path(__file__).resolve().parent
_LOOK_EVERY_MS = 200
_KEPT_BYTES = 16 * 1024
_SHOWN_LINES = 8
_JOIN_S = 5.0

Context = RunContext[CleanRLWorkerConfig]


class UpstreamError(WorkerError):
    """The upstream code failed; the message says how, with the last lines that it wrote."""


@dataclass(frozen=True)
class Ending:
    """How a training ended and what it reported."""

    code: int
    seconds: float
    last_lines: list[str]
    reason: str | None
    steps: int
    episodes: int
    losses: int
    scalars: int

    def summary(self) -> dict[str, float]:
        """What `run_completed` tells."""
        counts = {"steps": self.steps, "episodes": self.episodes, "scalars": self.scalars}
        return {**counts, "seconds": round(self.seconds, 3)}


def run_upstream(
    context: Context,
    command: list[str],
    *,
    on_line: Callable[[str], None] | None = None,
    look: Callable[[Counters], None] = lambda _: None,
) -> Ending:
    """Run a command to its end; `on_line` gets each line of its stdout, and `look` is called now and then."""
    started = time.monotonic()
    with _counters(context.run_dir) as counters, _Lines(on_line) as stdout, _Lines() as stderr:
        _link_tensorboard(context)
        # What loses its parent becomes ours, so that we can end it.
        ctypes.CDLL(None).prctl(keeper.PR_SET_CHILD_SUBREAPER, 1)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", keeper.__file__, str(os.getpid()), *command],
            cwd=context.run_dir,
            stdin=subprocess.DEVNULL,
            stdout=stdout.write_end if on_line is not None else 2,
            stderr=stderr.write_end,
            **journal_for_child(context.emitter.fd, _environ(context, counters)),
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
            report_files(context)
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
    """Raise what tells why a training failed, if it did; warn if it looks odd."""
    context.stop.check()
    if ending.reason is not None:
        raise UpstreamError(ending.reason)
    if ending.code != 0:
        last = ending.last_lines[-_SHOWN_LINES:]
        how = f"ended with exit code {ending.code}" if ending.code > 0 else f"was killed by signal {-ending.code}"
        raise UpstreamError(f"{name} {how}: {last[-1] if last else 'it wrote no error'}" + _below(last[:-1]))
    if not ending.episodes and not ending.losses:
        raise UpstreamError(
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
    """Return when the process has ended, which it is told to do if the run is stopped or a hook gave up."""
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


def _environ(context: Context, counters: Counters) -> dict[str, str]:
    """The variables of what we start: the hooks', the run's, and where modules are."""
    extras = context.config.extras
    upstream = os.environ.get("MOSAIC_UPSTREAM") if library() == "gymnasium" else None
    folders = [_PACKAGE / "startup", _PACKAGE.parent, upstream, os.environ.get("PYTHONPATH")]
    return {
        **os.environ,
        **lane_variables(extras, os.environ),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "PYTHONPATH": os.pathsep.join(str(folder) for folder in folders if folder),
        "PYTHONUNBUFFERED": "1",
        "MOSAIC_RUN_DIR": str(context.run_dir),
        "MOSAIC_SEED": str(context.config.seed),
        COUNTERS: str(counters.folder),
        JOURNAL: describe_journal(context.emitter.fd),
        # Nothing goes to Weights & Biases unless the run asks for it.
        "WANDB_MODE": extras.wandb_mode if extras.track_wandb else "disabled",
        "WANDB_DIR": str(context.run_dir),
    }


@contextlib.contextmanager
def _counters(run_dir: Path) -> Iterator[Counters]:
    folder = tempfile.mkdtemp(prefix=".training-", dir=run_dir)  # one that a killed worker left may still be there
    try:
        yield Counters(folder, create=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _link_tensorboard(context: Context) -> None:
    """Have what scripts write to `runs`, TensorBoard files and models, end up where the config says."""
    folder = context.run_dir / context.config.extras.tensorboard_dir
    folder.mkdir(parents=True, exist_ok=True)
    runs = context.run_dir / "runs"
    if not runs.exists():
        runs.symlink_to(folder.relative_to(context.run_dir))


class _Lines:
    """Copies what a process writes to the run's log, and remembers the end of it."""

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
        """Begin to copy; the process has its own copy of the end to write to."""
        self._close_write_end()
        self._thread.start()

    def join(self) -> None:
        """Wait until all is copied."""
        self._thread.join(_JOIN_S)

    def last(self) -> list[str]:
        """The last lines, without empty ones."""
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
