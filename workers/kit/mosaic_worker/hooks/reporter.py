"""The reporter of a hooked process: writes what its environments and scalars tell to the run's journal.

A failure in here never reaches the program: it is reported once, and then reports of that kind end.
"""

import contextlib
import math
import multiprocessing
import os
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

from mosaic_worker.emitter import Emitter
from mosaic_worker.hooks.counters import EPISODES, LOSSES, SCALAR_STEP, SCALARS, VECTOR_STEPS, Counters
from mosaic_worker.hooks.settings import Link
from mosaic_worker.hooks.tap import Tap, as_number, called_from, tapped
from mosaic_worker.stdout import JOURNAL_FD, note

__all__ = ["Reporter", "describe_journal"]

_PROGRAM = "MOSAIC_HOOKS_PROGRAM"
"""The number of the program that a process belongs to, set for processes that it spawns."""


def describe_journal(fd: int) -> str:
    """Describe the journal: its device and inode, and a path by which another process can open it."""
    found = os.fstat(fd)
    return f"{found.st_dev}:{found.st_ino}:/proc/{os.getpid()}/fd/{fd}"


def _open_journal(journal: str, environ: Mapping[str, str]) -> int:
    """Return a descriptor of the journal: the inherited one, if it still is the journal, or a new one."""
    device, inode, path = journal.split(":", 2)
    with contextlib.suppress(KeyError, ValueError, OSError):
        fd = int(environ[JOURNAL_FD])
        found = os.fstat(fd)
        if (found.st_dev, found.st_ino) == (int(device), int(inode)):
            return fd
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)


class Reporter:
    """Reports the episodes and scalars of this process."""

    def __init__(self, link: Link, environ: MutableMapping[str, str]) -> None:
        """Open the journal and the counters that the link names."""
        self._settings = link.settings
        self._environ = environ
        self._run_dir = Path(environ.get("MOSAIC_RUN_DIR") or Path.cwd())
        self.emitter = Emitter(_open_journal(link.journal, environ))
        self.counters = Counters(link.counters)
        # Programs that run one after another share one step axis.
        self._before = self.counters.step
        is_part = multiprocessing.parent_process() is not None and _PROGRAM in environ
        self._program, self.counts = self.counters.claim(int(environ[_PROGRAM]) if is_part else None)
        environ[_PROGRAM] = str(self._program)  # for processes that are spawned
        self._lane: Any = None
        self._said: set[str] = set()
        self._forked = False
        os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        """In a forked process, count into a dummy slot until it makes an environment or writes a scalar."""
        self.emitter = Emitter(self.emitter.fd)
        self.counts = memoryview(bytearray(8 * len(self.counts))).cast("q")
        self._forked = True

    def _join(self) -> None:
        if self._forked:
            _, self.counts = self.counters.claim(self._program)
            self._forked = False

    def say_once(self, what: str, error: BaseException) -> None:
        """Log once that something is not reported, and why."""
        message = f"{what}: {type(error).__name__}: {error}"
        if message in self._said:
            return
        self._said.add(message)
        with contextlib.suppress(OSError):
            self.emitter.log("warning", message)
        note(message)

    # Environments.

    def tap(self, env: Any) -> Any:
        """Return an environment that reports its episodes, and its frames if the run wants them."""
        self._join()
        is_evaluation = called_from(self._settings.evaluation_paths)
        tap = Tap(self, self.counters.next_environment(), is_evaluation=is_evaluation)
        if (lane := self.lane) is not None:
            tap.watch = lane.watch(env, tap.index)
        return tapped(env, tap)

    @property
    def lane(self) -> Any:
        """The run's FastLane, or None if the run wants no frames."""
        if self._lane is None:
            self._lane = self._make_lane() or False
        return self._lane or None

    def _make_lane(self) -> Any:
        # Checked here, since numpy and pydantic are not imported for a program that nobody watches.
        if self._environ.get("MOSAIC_FASTLANE_MODE", "off") == "off" and not self._environ.get("MOSAIC_RECORD"):
            return None
        try:
            from mosaic_worker.frames.fastlane import FastLane  # noqa: PLC0415 - as above

            lane = FastLane.from_environ(self._environ, self._run_dir, self.emitter)
        except Exception as error:
            self.say_once("no frames", error)
            return None
        return lane if lane.wants_frames else None

    def vector_steps(self, count: int) -> None:
        """A vector environment of `count` environments is about to take a step."""
        self.counts[VECTOR_STEPS] += count

    def episode(self, tap: Tap, episode_return: float) -> None:
        """An environment finished an episode."""
        if tap.is_evaluation:
            self.emitter.emit(
                "evaluation_episode", **{"return": episode_return}, length=tap.length, step=self.counters.step
            )
            return
        number = self.counters.total(EPISODES)
        self.counts[EPISODES] += 1
        self.emitter.episode(number, episode_return, length=tap.length, step=self.counters.step, seed=tap.seed)

    # Scalars.

    def scalar(self, tag: str, value: Any, step: int | None) -> None:
        """The program wrote a scalar."""
        self._join()
        number = as_number(value)
        at = self._before + int(step) if step is not None else self.counters.step
        counts = self.counts
        counts[SCALARS] += 1
        self.emitter.scalars(at, {tag: number})
        if tag.startswith(self._settings.foreign_step_tags):
            return
        counts[SCALAR_STEP] = max(counts[SCALAR_STEP], at)
        if "loss" in tag and not any(part in tag for part in self._settings.nan_tags):
            self._loss(tag, number, at)
        elif tag in self._settings.episode_tags and not self.counters.has_steps(self._program):
            # Environments that are not made by `make`, such as those of envpool.
            episodes = self.counters.total(EPISODES)
            counts[EPISODES] += 1
            self.emitter.episode(episodes, number, step=at)

    def _loss(self, tag: str, value: float, step: int) -> None:
        if math.isfinite(value):
            self.counts[LOSSES] += value != 0
            return
        word = "NaN" if math.isnan(value) else "infinite"
        reason = f"loss is {word} at step {step} ({tag})"
        self.counters.set_reason(reason, step)
        raise SystemExit(f"mosaic: {reason}")
